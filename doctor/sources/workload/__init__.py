"""Workloads from a file, a model config, or settings on the command line."""
