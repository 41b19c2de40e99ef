"""List what an installation consists of: a CycloneDX document, and a table of licences.

    python scripts/release/sbom.py [--wheel dist] --output sbom        sbom/attn-doctor.cdx.json, sbom/licences.md

Releases and hashes come from `requirements/runtime.txt`, licences from the metadata of what is installed here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
#: Licences that a package may have: permissive ones.
ACCEPTED = re.compile(r"MIT|BSD|Apache|PSF|Python Software Foundation|ISC", re.IGNORECASE)


def main() -> int:
    """Write both files; return 1 for a licence that is not accepted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", help="folder with the wheel, whose hash is listed")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    found = components((ROOT / "requirements" / "runtime.txt").read_text("utf-8"))
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    wheels = sorted(Path(options.wheel).glob("*.whl")) if options.wheel else []
    document = cyclonedx(found, wheels[0] if wheels else None)
    (folder / "attn-doctor.cdx.json").write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    (folder / "licences.md").write_text(licences(found), "utf-8")
    refused = [item["name"] for item in found if item["licence"] and not ACCEPTED.search(item["licence"])]
    if refused:
        print(f"error: licences that are not accepted: {', '.join(refused)}", file=sys.stderr)
    return int(bool(refused))


def components(lock: str) -> list[dict[str, Any]]:
    """Return name, version, hashes and licence of each locked package."""
    places = list(_LINE.finditer(lock))
    found = []
    for number, place in enumerate(places):
        end = places[number + 1].start() if number + 1 < len(places) else len(lock)
        hashes = _HASH.findall(lock[place.start() : end])
        found.append({"name": place[1], "version": place[2], "hashes": hashes, "licence": _licence(place[1])})
    return found


def _licence(name: str) -> str:
    """Return what the installed package says about its licence, empty where it is not installed."""
    try:
        fields = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    classified = [
        text.rpartition(" :: ")[2] for text in fields.get_all("Classifier") or () if text.startswith("License")
    ]
    stated = (
        fields.get("License-Expression") or ", ".join(classified) or (fields.get("License") or "").partition("\n")[0]
    )
    return str(stated)[:80]


def cyclonedx(found: list[dict[str, Any]], wheel: Path | None) -> dict[str, Any]:
    """Return the document; the same packages give the same serial number."""
    version = re.search(r'"([^"]+)"', (ROOT / "doctor" / "_version.py").read_text("utf-8"))
    own: dict[str, Any] = {"type": "application", "name": "attn-doctor", "version": version[1] if version else "0"}
    own["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    if wheel is not None:
        own["hashes"] = [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}]
    parts = [
        {
            "type": "library", "name": item["name"], "version": item["version"], "bom-ref": _purl(item),
            "purl": _purl(item), "licenses": [{"license": {"name": item["licence"]}}] if item["licence"] else [],
            "hashes": [{"alg": "SHA-256", "content": text} for text in item["hashes"]],
        }
        for item in found
    ]  # fmt: skip
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([own, parts], sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return {**head, "metadata": {"component": own}, "components": parts}


def _purl(item: dict[str, Any]) -> str:
    return f"pkg:pypi/{item['name'].lower().replace('_', '-')}@{item['version']}"


def licences(found: list[dict[str, Any]]) -> str:
    """Return a table in Markdown."""
    rows = [f"| {item['name']} | {item['version']} | {item['licence'] or 'not installed here'} |" for item in found]
    return "\n".join(["| package | release | licence |", "|---|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
