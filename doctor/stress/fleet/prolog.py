"""Whether a node may take jobs: no finding, and no difference from a good node."""

from __future__ import annotations

from pathlib import Path

from doctor.diagnosis.comparison import compare_reports
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.model import SEVERITIES, Facts, Report
from doctor.report.comparison import difference_line
from doctor.report.comparison_model import DiffArea
from doctor.rulebook.rulebook import load_rulebook
from doctor.sources.snapshot import read_facts

#: What must be the same on every node; variables differ from job to job.
COMPARED = (DiffArea.LIBRARY, DiffArea.DRIVER, DiffArea.GPU, DiffArea.FILE)


def prolog_verdict(request: Request, like: str | None, fail_on: str) -> tuple[bool, str]:
    """Return whether this node is good, and why not in one line.

    `like` is a snapshot of a good node. DoctorError where no diagnosis can be made.
    """
    report = diagnose(request)
    limit = len(SEVERITIES) if fail_on == "never" else SEVERITIES.index(fail_on)
    found = [item for item in report.findings if fail_on != "never" and item.severity.rank <= limit]
    if found:
        return False, f"{found[0].severity} {found[0].rule}: {found[0].message}"
    if like is None:
        return True, "no finding"
    rulebook = load_rulebook((*request.defaults.rules, *request.rules))
    good = Report(report.tool, report.rulebook, _machine(read_facts(Path(like))), (), (), (), (), {}, target=like)
    own = Report(report.tool, report.rulebook, _machine(report.facts), (), (), (), (), {})
    comparison = compare_reports(rulebook, (like, "this node"), good, own)
    differing = [item for item in comparison.differences if item.known and item.area in COMPARED]
    if differing:
        return False, f"differs from `{like}` (A): {'; '.join(difference_line(item) for item in differing[:4])}"
    return True, f"no finding, and like `{like}`"


def _machine(facts: Facts) -> Facts:
    return Facts(fact for key, fact in facts.items() if not key.startswith("workload."))
