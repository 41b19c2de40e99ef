"""JSON Schemas of what users write and programs read, generated from the vocabulary and the rule format's constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from doctor.facts.kinds import FactKind
from doctor.facts.vocabulary import SPELLINGS, TERMS, Term
from doctor.facts.workload import ALIASES
from doctor.model import ABSENT, SEVERITIES, FixSafety, RunVerdict, Verdict
from doctor.rulebook.library_fields import library_schema
from doctor.rulebook.rule_fields import rule_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "pattern": r"\S"}
#: Families of keys that no list can name -> their kind.
FAMILIES = {
    r"^env\.[A-Za-z_][A-Za-z0-9_]*$": FactKind.TEXT,
    r"^[a-z0-9]+(-[a-z0-9]+)*\.version$": FactKind.VERSION,
    r"^[a-z0-9]+(-[a-z0-9]+)*\.wheel$": FactKind.TEXT,
    r"^[a-z0-9]+([-.][a-z0-9_]+)*\.given$": FactKind.BOOLEAN,
    r"^[a-z][a-z0-9]*\.selected(_by_default)?$": FactKind.TEXT,
    r"^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*\.(variant|step_variant|step_refusal)$": FactKind.TEXT,
    r"^[a-z][a-z0-9]*\.[a-z][a-z0-9_]*\.(available|reached)$": FactKind.BOOLEAN,
}
_BOOLEAN = ("true", "false", "yes", "no", "on", "off", "1", "0")
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"


def schema_names() -> tuple[str, ...]:
    """Return the names that `schema_of` knows."""
    return tuple(_SCHEMAS)


def schema_of(name: str) -> Schema:
    """Return one schema; KeyError for an unknown name."""
    made = _SCHEMAS[name]()
    kinds = {} if name in ("rule", "library", "report") else _kinds()
    return {"$schema": DIALECT, "title": f"attn-doctor {name}", **made, "$defs": {**kinds, **made.get("$defs", {})}}


def _value(kind: FactKind) -> Schema:
    """Return the schema of a plain value, as the parser of its kind reads it; `absent` fits every kind."""
    text: dict[FactKind, list[Schema]] = {
        FactKind.VERSION: [{"type": "string", "pattern": r"^\s*v?\d"}, {"type": "number"}],
        FactKind.SM: [
            {"type": "string", "pattern": r"^\s*(sm_?)?\d{2,3}[af]?\s*$|^\s*\d{1,2}\.\d\s*$"}, {"type": "number"},
        ],
        FactKind.INTEGER: [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[-+]?\d+\s*$"}],
        FactKind.NUMBER: [{"type": "number"}, {"type": "string", "pattern": _NUMBER}],
        FactKind.BOOLEAN: [
            {"type": "boolean"},
            {"type": "string", "pattern": f"^\\s*({'|'.join(_BOOLEAN)}|True|False)\\s*$"}, {"enum": [0, 1]},
        ],
        FactKind.WINDOW: [
            {"type": "array", "minItems": 2, "maxItems": 2,
             "items": {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\s*[-+]?\d+\s*$"}]}},
            {"type": "string", "pattern": r"^[\s\[(]*[-+]?\d+[\s,]+[-+]?\d+[\s\])]*$"},
        ],
        FactKind.LIST: [{"type": "array", "items": {"type": ["string", "number"]}}, {"type": "string"}],
        FactKind.TEXT: [{"type": ["string", "number", "boolean"]}],
    }  # fmt: skip
    return {"anyOf": [*text[kind], {"const": ABSENT}]}


def _long(value: Schema) -> Schema:
    """Return the long form of a fact, with source and problem."""
    return {
        "type": "object",
        "properties": {
            "value": value,
            **{name: {"type": ["string", "null"]} for name in ("source", "raw", "problem", "via")},
            "assumed": {"type": ["boolean", "string"]},
        },
        "additionalProperties": False,
    }


def _fact(term: Term) -> Schema:
    """Return the schema of a fact: a plain value, or the long form; kinds are defined once."""
    if not term.values:
        return {"description": term.meaning, "$ref": f"#/$defs/{term.kind}"}
    value: Schema = {"enum": [*term.values, *SPELLINGS.get(term.key, ()), ABSENT, None]}
    return {"description": term.meaning, "anyOf": [value, _long(value)]}


def _kinds() -> dict[str, Schema]:
    """Return the definitions that facts refer to, one for each kind."""
    found = {}
    for kind in FactKind:
        plain = _value(kind)["anyOf"]
        found[str(kind)] = {"anyOf": [*plain, {"type": "null"}, _long({"anyOf": [*plain, {"type": "null"}]})]}
    return found


def _environment_keys() -> Schema:
    own = {key: _fact(term) for key, term in sorted(TERMS.items()) if not key.startswith("workload.")}
    return {
        "properties": own,
        "patternProperties": {key: {"$ref": f"#/$defs/{kind}"} for key, kind in FAMILIES.items()},
    }


def _workload_keys(prefix: str = "") -> dict[str, Schema]:
    return {
        prefix + key.removeprefix("workload."): _fact(term)
        for key, term in sorted(TERMS.items())
        if key.startswith("workload.") and key != "workload.given"
    }


def _workload_section() -> Schema:
    """Return the schema of a workload: the keys, and the names of them that people type."""
    aliases = {name: _fact(TERMS[f"workload.{meant[0]}"]) for name, meant in ALIASES.items()}
    both = {**aliases, **_workload_keys(), **_workload_keys("workload.")}
    return {"type": "object", "properties": both, "additionalProperties": False}


def _facts() -> Schema:
    keys = _environment_keys()
    flat = {**keys["properties"], **_workload_keys("workload.")}
    inner = {
        "type": "object",
        "properties": {**flat, "workload": _workload_section()},
        "patternProperties": keys["patternProperties"],
        "additionalProperties": False,
    }
    return {
        "description": "A facts file: flat, or with `facts:` and `workload:`; `snapshot` writes the long form.",
        "type": "object",
        "minProperties": 1,
        "properties": {
            **flat, "schema": {"anyOf": [{"const": 1}, {"const": "1"}]}, "tool": {"type": "string"},
            "facts": inner, "workload": _workload_section(),
        },
        "patternProperties": keys["patternProperties"],
        "additionalProperties": False,
    }  # fmt: skip


def _workload() -> Schema:
    section = _workload_section()
    wrapped = {
        "type": "object",
        "required": ["workload"],
        "properties": {"workload": section, "facts": {"type": "object"}, "schema": True, "tool": True},
        "additionalProperties": False,
    }
    return {
        "description": "A workload file: keys as `attn-doctor keys` lists them, plain or under `workload:`.",
        "if": {"required": ["workload"]},
        "then": wrapped,
        "else": {**section, "minProperties": 1},
    }


def _reason() -> Schema:
    return {"type": ["object", "null"], "required": ["rule", "message"],
            "properties": {"rule": {"type": "string"}, "message": {"type": "string"}}}  # fmt: skip


def _prediction() -> Schema:
    candidate = {
        "type": "object",
        "required": ["backend", "available", "reasons"],
        "properties": {
            "backend": {"type": "string"}, "available": {"type": ["boolean", "null"]},
            "reasons": {"type": "array", "items": _reason()},
        },
    }  # fmt: skip
    return {
        "type": "object",
        "required": ["selected", "could_tell", "candidates", "fails_at_run", "import_error"],
        "properties": {
            "library": {"type": "string"}, "selected": {"type": ["string", "null"]}, "could_tell": {"type": "boolean"},
            "candidates": {"type": "array", "items": candidate}, "fails_at_run": _reason(), "import_error": _reason(),
        },
    }  # fmt: skip


def _costs() -> Schema:
    number: Schema = {"type": ["number", "null"]}
    backend = {
        "type": "object",
        "required": ["backend", "selected", "select", "milliseconds", "bytes_peak", "memory"],
        "properties": {
            "backend": TEXT, "selected": {"type": "boolean"}, "select": {"type": ["string", "null"]},
            "milliseconds": number, "bytes_peak": number,
            "memory": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }  # fmt: skip
    return {
        "description": "Of each kind of layer, where the GPU and its shape are known: predicted, the fastest first.",
        "type": "object",
        "required": ["layer", "shape", "basis", "backends"],
        "properties": {
            "layer": {"type": ["string", "null"]}, "shape": TEXT, "basis": TEXT,
            "backends": {"type": "array", "items": backend},
        },
    }  # fmt: skip


def _report() -> Schema:
    fact = {"type": "object", "required": ["value", "source"]}
    finding = {
        "type": "object",
        "required": ["id", "name", "severity", "verdict", "message", "evidence", "references"],
        "properties": {
            "id": {"type": "string"}, "severity": {"enum": [str(item) for item in SEVERITIES]},
            "verdict": {"enum": [str(item) for item in Verdict]}, "message": {"type": "string"},
            "evidence": {"type": "array", "items": {"type": "object"}},
            "references": {"type": "array", "items": {"type": "string"}},
            "confirmation": {
                "type": ["object", "null"], "properties": {"verdict": {"enum": [str(item) for item in RunVerdict]}},
            },
        },
    }  # fmt: skip
    fix = {
        "type": "object",
        "required": ["title", "changes", "resolves"],
        "properties": {"safety": {"enum": [str(item) for item in FixSafety]}, "resolves": {"type": "array"}},
    }
    gap = {"type": "object", "required": ["package", "reason"], "properties": {"package": TEXT, "reason": TEXT}}
    drift = {
        "description": "Only where installed sources were to be analyzed; `limit` in seconds, null for none.",
        "type": "object",
        "required": ["analysed", "not_analysed", "limit", "command"],
        "properties": {
            "analysed": {"type": "array", "items": TEXT}, "not_analysed": {"type": "array", "items": gap},
            "limit": {"type": ["number", "null"]}, "command": {"type": ["string", "null"]},
        },
    }  # fmt: skip
    return {
        "description": "`attn-doctor check --format json`.",
        "type": "object",
        "required": [
            "schema",
            "tool",
            "rulebook",
            "facts",
            "workload",
            "findings",
            "backends",
            "fixes",
            "undetermined",
        ],
        "properties": {
            "schema": {"const": 1},
            "facts": {"type": "object", "additionalProperties": fact},
            "workload": {"type": "object", "additionalProperties": fact},
            "findings": {"type": "array", "items": finding},
            "backends": {"type": "array", "items": _prediction()},
            "costs": {"type": "array", "items": _costs()},
            "fixes": {"type": "array", "items": fix},
            "undetermined": {"type": "array", "items": {"type": "object"}},
            "unconcerned": {"type": "array", "items": finding},
            "timing": {"type": "object", "additionalProperties": {"type": "number"}},
            "drift": drift,
        },
    }


def _project() -> Schema:
    names: Schema = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    ignore = {
        "type": "object",
        "required": ["rule", "reason", "until"],
        "properties": {
            "rule": TEXT, "reason": TEXT, "owner": {"type": "string"},
            "until": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}"},
        },
        "additionalProperties": False,
    }  # fmt: skip
    return {
        "description": "`[tool.attn-doctor]` of pyproject.toml.",
        "type": "object",
        "properties": {
            "fail-on": {"enum": [*(str(item) for item in SEVERITIES), "never"]},
            "gpu": names, "model": names, "requirements": names,
            "workload": {"anyOf": [*names["anyOf"], _workload_section()]},
            "environments": {"type": "object", "additionalProperties": names},
            "rules": {"type": "array", "items": {"type": "string"}},
            "ignore": {"type": "array", "items": ignore},
        },
        "additionalProperties": False,
        "not": {"required": ["requirements", "environments"]},
    }  # fmt: skip


_SCHEMAS: dict[str, Callable[[], Schema]] = {
    "facts": _facts, "workload": _workload, "rule": rule_schema, "library": library_schema, "report": _report,
    "project": _project,
}  # fmt: skip
