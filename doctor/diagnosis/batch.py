"""`backends --batch`: JSON Lines of facts and workloads in, JSON Lines of predictions out, order kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from doctor.errors import DoctorError
from doctor.facts.libraries.frameworks import caller_named, servers
from doctor.facts.libraries.servers import read_options
from doctor.facts.long_form import read_fact
from doctor.facts.workload import workload_facts
from doctor.model import Facts, Prediction, Reason
from doctor.packages.gpus import with_capability
from doctor.rulebook.backends import predict
from doctor.rulebook.evaluate import know
from doctor.rulebook.rule import Library
from doctor.rulebook.rulebook import Rulebook

SOURCE = "the batch"


def answer(rulebook: Rulebook, line: str) -> tuple[dict[str, Any], bool]:
    """The prediction for one line of input, and whether the line was good; never raises for bad input."""
    identity: Any = None
    try:
        case = json.loads(line)
        if not isinstance(case, dict):
            raise DoctorError("a line needs a JSON object with `facts` and `workload`")
        identity = case.get("id")
        return {"id": identity, **shape(predict_case(rulebook, read_case(case)))}, True
    except json.JSONDecodeError as problem:
        return {"id": identity, "error": f"not JSON: {problem.msg} at column {problem.colno}"}, False
    except ValueError as problem:  # a number of thousands of digits
        return {"id": identity, "error": f"not JSON: {str(problem).partition(';')[0]}"}, False
    except RecursionError:
        return {"id": identity, "error": "nested too deeply"}, False
    except DoctorError as problem:
        hint = f" ({problem.hint})" if problem.hint else ""
        return {"id": identity, "error": f"{problem.message}{hint}"}, False


def read_case(case: Mapping[str, Any]) -> Facts:
    """Return facts, machine and workload of one line as facts; other sections belong to the caller."""
    facts = [read_fact(key, value, SOURCE) for key, value in _section(case, "facts").items()]
    facts += [read_fact(f"machine.{key}", value, SOURCE) for key, value in _section(case, "machine").items()]
    words = {**_section(case, "workload"), **_options(case)}
    return Facts(facts).with_(*workload_facts(words, lambda key: SOURCE, recorded=True).values())


def predict_case(rulebook: Rulebook, facts: Facts) -> Prediction:
    """What the library that the workload's framework uses will choose."""
    known, predictions = know(rulebook, with_capability(facts, rulebook.gpus))
    library = library_of(rulebook, known.value("workload.framework"))
    if library.prefix not in predictions:
        predictions[library.prefix or library.name] = predict(rulebook, library, known)
    return predictions[library.prefix or library.name]


def library_of(rulebook: Rulebook, named: str | None) -> Library:
    """The library whose backends a framework's workload is served by; DoctorError when there is none."""
    if named is None:
        raise DoctorError("`workload.framework` is missing")
    library = rulebook.libraries.get(caller_named(named).library)
    if library is None or not library.backends:
        having = [name for name, found in rulebook.libraries.items() if found.backends]
        raise DoctorError(f"no backends are known for framework `{named}`", f"known: {', '.join(sorted(having))}")
    return library


def shape(prediction: Prediction) -> dict[str, Any]:
    """One prediction in the form of the batch output."""
    phases = {} if prediction.prefill is None else {"prefill": prediction.prefill}
    return {
        "selected": prediction.selected,
        **phases,
        "could_tell": prediction.could_tell,
        "candidates": [
            {
                "backend": candidate.backend,
                "available": candidate.available,
                "reasons": [_reason(reason) for reason in candidate.reasons],
            }
            for candidate in prediction.candidates
        ],
        "fails_at_run": _struck(prediction.fails_at_run),
        "import_error": _struck(prediction.import_error),
    }


def _struck(reason: Reason | None) -> dict[str, Any] | None:
    return _reason(reason) if reason is not None and reason.holds else None


def _reason(reason: Reason) -> dict[str, Any]:
    result: dict[str, Any] = {"rule": reason.rule, "message": reason.message}
    if reason.missing:
        result["missing"] = list(reason.missing)
    return result


def _section(case: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = case.get(name, {})
    if not isinstance(section, dict):
        raise DoctorError(f"`{name}` needs a JSON object")
    return section


def _options(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """The words of a server's command line, which say more than its workload where both are given."""
    arguments = case.get("options") or []
    if not isinstance(arguments, list):
        raise DoctorError("`options` needs a JSON list of arguments")
    if not arguments:
        return {}
    named = _section(case, "workload").get("framework")
    server = caller_named(named).server
    if server is None:
        raise DoctorError("`options` are those of a server", f"`framework` of its workload is {' or '.join(servers())}")
    return read_options(arguments, server)
