"""The nouns of a report about many nodes, all frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from doctor.model import Report, TextEnum


class NodeState(TextEnum):
    """What became of one node."""

    CHECKED = "checked"
    LOST = "lost"  # expected, and no answer came
    SLOW = "slow"  # no answer within the time limit
    FAILED = "failed"  # it answered that it could not be examined, or with something that is no snapshot


@dataclass(frozen=True)
class Node:
    """One node, or one rank of a job."""

    name: str
    state: NodeState
    group: int | None = None  # number of its environment
    problem: str = ""  # why it was not checked
    gpus: Mapping[str, str] = field(default_factory=dict)  # GPU -> verdict of the kernels that ran on it


@dataclass(frozen=True)
class EnvironmentGroup:
    """Nodes whose facts are the same, checked once."""

    number: int
    digest: str
    nodes: tuple[str, ...]
    report: Report | None  # None: too many different environments, this one was not checked
    problem: str = ""


@dataclass(frozen=True)
class Outlier:
    """What some nodes have otherwise than most: `3 of 512 nodes have cuDNN 9.14.0 instead of 9.19.0`."""

    what: str
    found: str
    usual: str
    nodes: tuple[str, ...]
    of: int
    rare: bool  # a few nodes; otherwise a second kind of node


@dataclass(frozen=True)
class GpuFault:
    """A GPU whose result differs from that of its peers: the same model, environment and case."""

    gpu: str
    model: str
    cases: int  # in which it differs
    difference: str  # of the first
    certain: bool  # most peers agree with each other, so this one is wrong


@dataclass(frozen=True)
class FleetReport:
    """Many nodes, each with what became of it; nothing is left out."""

    tool: str
    nodes: tuple[Node, ...]
    groups: tuple[EnvironmentGroup, ...]
    outliers: tuple[Outlier, ...]
    faults: tuple[GpuFault, ...] = ()
    kernels: Mapping[str, int] = field(default_factory=dict)  # verdict -> cases, over all GPUs
    notes: tuple[str, ...] = ()
    timing: Mapping[str, float] = field(default_factory=dict)
    combined: Report | None = None  # the groups as cases of one report, for the formats of CI systems
    schema: int = 1

    def in_state(self, state: NodeState) -> tuple[Node, ...]:
        """Return the nodes in one state."""
        return tuple(node for node in self.nodes if node.state == state)
