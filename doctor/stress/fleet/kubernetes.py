"""A Kubernetes manifest that examines every node: a DaemonSet, or a Job with one pod per node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from doctor.errors import DoctorError
from doctor.util.redact import shortened

NAME = "attn-doctor-fleet"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,400}")


@dataclass(frozen=True)
class PodOptions:
    """What the pods run, and what they reserve."""

    image: str
    python: str = "python3"
    namespace: str = "default"
    gpus: int = 0
    run: bool = False
    nodes: int = 0  # 0: a DaemonSet, on every node


def manifest(options: PodOptions) -> str:
    """Return the manifest as YAML, with the commands to use it as comments; DoctorError for names that cannot be."""
    if not _IMAGE.fullmatch(options.image):
        raise DoctorError(f"`--image {shortened(options.image, 80)}` is not the name of an image")
    if not _NAMESPACE.fullmatch(options.namespace):
        raise DoctorError(f"`--namespace {shortened(options.namespace, 80)}` is not a name of Kubernetes")
    probe = ["attn-doctor", "fleet", "probe", "--python", options.python, *(["--run"] if options.run else [])]
    container: dict[str, Any] = {
        "name": "probe",
        "image": options.image,
        "command": probe,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if options.gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": options.gpus}}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    labels = {"app": NAME}
    meta = {"name": NAME, "namespace": options.namespace, "labels": labels}
    if options.nodes:
        pod |= {"restartPolicy": "Never", "containers": [container], "affinity": _one_per_node(labels)}
        kind = {
            "apiVersion": "batch/v1", "kind": "Job", "metadata": meta,
            "spec": {
                "completions": options.nodes, "parallelism": options.nodes, "backoffLimit": options.nodes,
                "ttlSecondsAfterFinished": 86400, "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }  # fmt: skip
    else:
        # A pod of a DaemonSet that ends is started again: the probe is an init container, and a pause keeps the pod.
        pause = {"name": "pause", "image": options.image, "command": ["sleep", "infinity"]}
        pod |= {"initContainers": [container], "containers": [pause]}
        kind = {
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta,
            "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
        }  # fmt: skip
    head = (
        f"# kubectl apply -f FILE; then, when all pods are done:\n"
        f"# kubectl -n {options.namespace} get nodes -o name | sed s,node/,, > nodes.txt\n"
        f"# kubectl -n {options.namespace} logs -l app={NAME} -c probe --tail=-1 --max-log-requests=1000 | \\\n"
        f"#   attn-doctor fleet --snapshots - --expect nodes.txt\n"
    )
    return head + yaml.safe_dump(kind, sort_keys=False)


def _one_per_node(labels: dict[str, str]) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
