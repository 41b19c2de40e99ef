"""Renew the tables of what releases pin, from the metadata in the package index that pip is configured for.

    python scripts/release/refresh_pins.py [--dry-run]

Rewrites the `releases:` rows of `rules/torchaudio`, `rules/sgl_kernel` and `rules/sglang_kernel`, and the pin of
flashinfer-python in `rules/vllm`; everything else in these files stays as it is. Releases are read like
`scripts/release/refresh_index.py` does, in memory and without the embedded index.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

sys.path.insert(0, str(Path(__file__).resolve().parent))
import refresh_index

RULES = Path(__file__).resolve().parents[2] / "rules"


def pin_of(requires: list[str], package: str) -> str | None:
    """The one release of a package that these requirements name with `==`."""
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        exact = re.fullmatch(r"==\s*([0-9][\w.!+]*)", str(requirement.specifier))
        if name == package and exact:
            return exact[1]
    return None


def minor(version: str) -> str:
    """2.8.0 → "2.8", quoted as YAML needs it."""
    return '"' + ".".join(version.split(".")[:2]) + '"'


def releases_of(package: str, index: str) -> dict[str, list[str]]:
    """Release → its requirements."""
    read = refresh_index.refreshed(package, {}, index)
    return {version: body.get("rd", []) for version, body in read["releases"].items()}


def torchaudio_rows(index: str) -> dict[str, dict[str, str]]:
    """torchaudio's pin of torch; 2.11 and later use torch's stable ABI and have none."""
    rows = {}
    for version, requires in releases_of("torchaudio", index).items():
        pin = pin_of(requires, "torch")
        rows[version] = {"torchaudio.torch_pin": minor(pin) if pin else "absent"}
    return rows


def sglang_rows(index: str) -> dict[str, dict[str, str]]:
    """SGLang's pins of torch, of its kernel package and of FlashInfer."""
    rows = {}
    for version, requires in releases_of("sglang", index).items():
        kernel = pin_of(requires, "sgl-kernel") or pin_of(requires, "sglang-kernel")
        pins = {
            "sglang.torch_pin": pin_of(requires, "torch"),
            "sglang.kernel_pin": kernel,
            "sglang.flashinfer_pin": pin_of(requires, "flashinfer-python"),
        }
        if any(pins.values()):
            rows[version] = {key: pin for key, pin in pins.items() if pin}
    return rows


def kernel_rows(index: str) -> dict[str, dict[str, str]]:
    """The torch of each sglang-kernel: its own pin, else that of the first sglang that requires it."""
    by_sglang: dict[str, str] = {}
    for requires in releases_of("sglang", index).values():
        kernel, torch = pin_of(requires, "sglang-kernel"), pin_of(requires, "torch")
        if kernel and torch:
            by_sglang.setdefault(kernel, torch)
    rows = {}
    for version, requires in releases_of("sglang-kernel", index).items():
        torch = pin_of(requires, "torch") or by_sglang.get(version)
        if torch:
            rows[version] = {"sglang-kernel.torch_pin": minor(torch)}
    return rows


def vllm_rows(index: str) -> dict[str, dict[str, str]]:
    """vLLM's pins of torch and FlashInfer."""
    rows = {}
    for version, requires in releases_of("vllm", index).items():
        torch, flashinfer = pin_of(requires, "torch"), pin_of(requires, "flashinfer-python")
        if torch:
            rows[version] = {"vllm.torch_pin": torch, **({"vllm.flashinfer_pin": flashinfer} if flashinfer else {})}
    return rows


TABLES = {
    "torchaudio": torchaudio_rows,
    "sgl_kernel": sglang_rows,
    "sglang_kernel": kernel_rows,
    "vllm": vllm_rows,
}


def rewritten(text: str, rows: dict[str, dict[str, str]]) -> str:
    """The library file with its `releases:` block renewed; rows that are no longer published stay."""
    head, _, rest = text.partition("releases:\n")
    block = re.match(r"(?:  .*\n)*", rest)
    old = block[0] if block else ""
    table = dict(re.findall(r"^  ([\w.]+): (\{.*\})$", old, re.MULTILINE))
    for version, facts in rows.items():
        table[version] = "{" + ", ".join(f"{key}: {value}" for key, value in facts.items()) + "}"
    known = [*rows, *(version for version in table if version not in rows)]
    lines = "".join(f"  {version}: {table[version]}\n" for version in sorted(known, key=refresh_index.Version))
    return f"{head}releases:\n{lines}{rest[len(old) :]}"


def main() -> int:
    """Rewrite the tables and print how many rows each has."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    index = refresh_index.configured_index()
    for name, rows_of in TABLES.items():
        path = RULES / name / "library.yaml"
        rows = rows_of(index)
        print(f"{name}: {len(rows)} releases")
        if not arguments.dry_run:
            path.write_text(rewritten(path.read_text("utf-8"), rows), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
