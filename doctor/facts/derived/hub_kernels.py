"""Derived facts of attention kernels from the Hub: what the address in `attn_implementation` names.

Which repository and version is loaded in the end is decided in `rules/hub_kernels/library.yaml`.
"""

from __future__ import annotations

import re

from doctor.facts.kinds import BOOLEAN, TEXT
from doctor.facts.vocabulary import Term, declare
from doctor.model import ABSENT
from doctor.util.patterns import pattern

from .registry import derived

for _key, _meaning in (
    ("hub.repository", "the repository of the Hub from which transformers takes the attention kernel"),
    ("hub.version", "the version of that kernel: 1, 2 …; absent where another branch or commit is loaded"),
):
    declare(Term(_key, TEXT, _meaning, derived=True))

#: `owner/name`, `@revision`, `:function`; a wrapper such as `paged|` may precede it
_ADDRESS = pattern(r"(?:\w+\|)?(?P<repository>[^/:|@]+/[^/:|@]+)(?:@(?P<revision>[^:|@]+))?(?::(?P<function>[^/:]+))?")


def _part(written: str, name: str) -> str:
    """Return a part of an address of the Hub, or `absent`."""
    match = _ADDRESS.fullmatch(written)
    return (match[name] if match else None) or ABSENT


@derived("hub.named_repository", TEXT, "owner/name of the address in attn_implementation",
         needs=("workload.attn_implementation",))  # fmt: skip
def _repository(written: str) -> str:
    return _part(written, "repository")


@derived("hub.named_revision", TEXT, "what follows @ in the address in attn_implementation",
         needs=("workload.attn_implementation",))  # fmt: skip
def _revision(written: str) -> str:
    return _part(written, "revision")


@derived("hub.named_version", TEXT, "the version that the revision names: 3 of v3; absent for another revision",
         needs=("hub.named_revision",))  # fmt: skip
def _version(revision: str) -> str:
    match = re.fullmatch(r"v(\d{1,4})", revision)
    return match[1] if match else ABSENT


@derived("hub.named_function", TEXT, "what follows : in the address in attn_implementation",
         needs=("workload.attn_implementation",))  # fmt: skip
def _function(written: str) -> str:
    return _part(written, "function")


@derived("hub.wrapped", BOOLEAN, "the address in attn_implementation begins with a wrapper such as paged|",
         needs=("workload.attn_implementation",))  # fmt: skip
def _wrapped(written: str) -> bool:
    return "|" in written and _part(written, "repository") != ABSENT


@derived("hub.trusted", BOOLEAN, "the kernel comes from kernels-community", needs=("hub.repository",))
def _trusted(repository: str) -> bool:
    return repository == ABSENT or repository.startswith("kernels-community/")
