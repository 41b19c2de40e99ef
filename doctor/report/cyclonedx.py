"""The examined stack as a CycloneDX 1.6 bill of materials: packages, cuDNN, driver, and the GPU as a device."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from doctor.model import ABSENT, Report
from doctor.util.printable import printable

from .style import Style

SPEC = "1.6"
#: Keys that end in `.version` and name no distribution.
_NOT_PYPI = {"python.version": "application", "cudnn.version": "library", "driver.version": "device-driver"}
_NAMES = {"cudnn.version": "cuDNN", "driver.version": "NVIDIA driver", "python.version": "Python"}


def diagnosis(report: Report, style: Style) -> str:
    """Return the bill of materials; the same environment gives the same text."""
    components = list(_components(report))
    name, _, version = report.tool.partition(" ")
    target = {"type": "application", "name": printable(report.target) or "environment", "bom-ref": "target"}
    serial = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(components, sort_keys=True))
    content = {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": name, "version": version}]},
            "component": target,
        },
        "components": components,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _components(report: Report) -> Iterator[dict[str, Any]]:
    for key, fact in sorted(report.facts.items()):
        if not key.endswith(".version") or fact.value in (None, ABSENT) or key == "cudnn.te_version":
            continue
        version, distribution = printable(str(fact.value)), key.removesuffix(".version")
        kind = _NOT_PYPI.get(key, "library")
        item: dict[str, Any] = {"type": kind, "name": _NAMES.get(key, distribution), "version": version}
        if key in _NOT_PYPI:
            item["bom-ref"] = f"{distribution}@{version}"
        else:
            purl = f"pkg:pypi/{quote(distribution)}@{quote(version)}"
            item |= {"bom-ref": purl, "purl": purl}
        item["properties"] = [{"name": "attn-doctor:source", "value": printable(fact.origin)}]
        yield item
    gpu = report.facts.value("gpu.name")
    if gpu not in (None, ABSENT):
        yield {"type": "device", "name": printable(str(gpu)), "bom-ref": "gpu",
               "properties": [{"name": "attn-doctor:sm", "value": str(report.facts.value("gpu.sm"))}]}  # fmt: skip
