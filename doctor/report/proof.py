"""How far a fix is proven, step by step, for people and for programs."""

from __future__ import annotations

from typing import Any

from doctor.model import Verification, VerificationStep

from .page import Page
from .style import Style

_WORDS = {True: ("ok", "yes"), False: ("error", "no"), None: ("unclear", "unknown")}
_HEADS = {
    "dry-run": "Verified with a resolver:",
    "verify": "Verified in a trial installation:",
    "apply": "Applied:",
    "rollback": "Rolled back:",
}
_OUTCOMES = {True: "yes", False: "no", None: "unknown"}


def proof_lines(page: Page, proof: Verification) -> None:
    """The section of the text report."""
    page.say(proof.fix or "the last change", lead=_HEADS.get(proof.kind, f"{proof.kind}:"), look="label")
    for step in proof.steps:
        look, word = _WORDS[step.outcome]
        reason = f": {step.reason}" if step.reason else ""
        seconds = f" ({step.seconds:.1f} s)" if step.seconds >= 0.1 else ""
        page.say(f"{step.name}{reason}{seconds}", lead=f"{word}:", look=look, indent=2, hang=6)
        if step.command and step.outcome is not True:
            page.line(f"      {step.command}", "command")
    if proof.freeze:
        page.say(f"the previous packages are saved in `{proof.freeze}`", indent=2, hang=4)
        if proof.undo is not None:
            page.line(f"hint: `{proof.undo}` restores them")


def proof_text(proof: Verification) -> str:
    """The section alone, as plain lines."""
    page = Page(Style())
    proof_lines(page, proof)
    return page.text()


def proof_document(proof: Verification | None) -> dict[str, Any] | None:
    """The proof as JSON data."""
    if proof is None:
        return None
    return {
        "kind": proof.kind,
        "fix": proof.fix,
        "steps": [_step(step) for step in proof.steps],
        "freeze": proof.freeze,
    }


def _step(step: VerificationStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "outcome": _OUTCOMES[step.outcome],
        "reason": step.reason,
        "command": step.command,
        "seconds": step.seconds,
    }
