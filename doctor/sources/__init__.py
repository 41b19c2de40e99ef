"""Where facts come from: probes, manifests, workloads, project settings, snapshots."""
