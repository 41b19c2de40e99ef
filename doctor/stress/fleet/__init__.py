"""Engines that reach many nodes: Ray, Slurm, the ranks of a job, Kubernetes."""
