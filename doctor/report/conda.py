"""The fix as a fragment of conda's environment.yml: conda-forge's names, and `pip:` for what it does not have."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.model import ABSENT, Fix, InstallPlan, Report
from doctor.packages.conda_names import conda_names

from .shell import flat, fragment
from .style import Style


def fixes(report: Report, style: Style) -> str:
    """Render lines for `dependencies:`; comments only where no package changes."""
    return fragment(report, _dependencies)


def _dependencies(report: Report, fix: Fix, pins: InstallPlan) -> Iterator[str]:
    names = conda_names()
    yield "# not checked with conda's solver; the diagnosis holds for PyPI builds, and conda's bring the CUDA and cuDNN"
    yield "# of their channel. Run `conda env update --dry-run`, then `attn-doctor check` in that environment"
    if pins.removed:
        yield f"# first: pip uninstall -y {' '.join(pins.removed)}"
    yield from (f"# {flat(text)}" for text in pins.notes)
    yield from ("channels:", "  - conda-forge", "dependencies:")
    python = report.facts.value("python.version")
    if python not in (None, ABSENT):
        yield f"  - python ={'.'.join(str(python).split('.')[:2])}"
    wanted: dict[str, str] = {}  # conda's name → the line
    left = []
    for line in (*pins.changed, *pins.overridden, *pins.held, *pins.built):
        name = names.get(line.package)
        if name is None:
            left.append(line)
            continue
        build = " cuda*" if name == "pytorch" else ""
        why = flat(line.why) + (f" ({line.package} on PyPI)" if name != line.package else "")
        wanted.setdefault(name, f"  - {name} =={line.version.partition('+')[0]}{build}  # {why}")
    if pins.cuda:
        wanted["cuda-version"] = f"  - cuda-version ={pins.cuda}  # CUDA of the PyPI torch"
    if pins.cudnn:
        wanted["cudnn"] = f"  - cudnn >={pins.cudnn},<{int(pins.cudnn.split('.')[0]) + 1}  # cuDNN of the PyPI torch"
    yield from wanted.values()
    if left:
        yield from ("  - pip", "  - pip:")
        yield from (f"      - {line.package}{line.extra}=={line.version}  # {flat(line.why)}" for line in left)
