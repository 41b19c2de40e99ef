"""Reports with one fix each, as the solver would hand them over."""

from __future__ import annotations

from pathlib import Path

from doctor.apply.edit.edits import Edits, edits_of
from doctor.facts.vocabulary import fact
from doctor.model import Change, Facts, Fix, Report
from doctor.packages.index import load_index
from doctor.rulebook.resolver import FactResolver
from doctor.solver.environment import stack_of
from doctor.solver.install_plan import install_plan
from tests.helpers.rulebook import builtin_rulebook

INSTALLED = {
    "python.version": "3.11.7", "platform.system": "Linux", "platform.machine": "x86_64", "platform.glibc": "2.35",
    "torch.version": "2.6.0", "transformers.version": "4.44.0",
}  # fmt: skip


def report(*changes: Change, index_url: str | None = None, **installed: str) -> Report:
    """A report whose one fix makes these changes; packages are installed as given."""
    known = {**INSTALLED, **{f"{name.replace('_', '-')}.version": version for name, version in installed.items()}}
    facts = Facts(fact(key, value, "test") for key, value in known.items())
    fix = planned(Fix("Do it", changes, ("X001",)), facts, index_url)
    return Report("attn-doctor", {}, facts, (), (), (fix,), (), {})


def planned(fix: Fix, facts: Facts, index_url: str | None = None) -> Fix:
    """The fix with its install plan in the environment of these facts."""
    known = FactResolver(facts)
    packages = builtin_rulebook().packages
    plan = install_plan(stack_of(facts, known, load_index()), known, fix.changes, index_url, packages)
    return fix._replace(plan=plan)


def change(package: str, after: str | None, before: str | None = None) -> Change:
    """One package moved."""
    return Change("package", package, before, after, "why", ("X001",))


TORCH = change("torch", "2.7.1", "2.6.0")


def edited(path: Path, *changes: Change, **more: str) -> Edits:
    """The edits to one file and those it includes."""
    return edits_of(report(*(changes or (TORCH,)), **more), [str(path)])
