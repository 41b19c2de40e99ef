"""The workload: what attention is asked to do, from a file, a model config or the command line.

Every way in yields `workload.*` facts whose source names file and key, so that the report can say where
a head dimension came from. `complete_workload` adds what is usually meant, and says `assumed` where it does.
"""

from __future__ import annotations

from .complete import complete_workload, lay_over
from .huggingface import model_facts, read_model_config, workloads_of
from .reading import parse_settings, read_workload, workload_facts

__all__ = [
    "complete_workload",
    "lay_over",
    "model_facts",
    "parse_settings",
    "read_model_config",
    "read_workload",
    "workload_facts",
    "workloads_of",
]
