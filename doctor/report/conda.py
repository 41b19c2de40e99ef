"""The fix as a fragment of conda's environment.yml: conda-forge's names, and `pip:` for what it does not have."""

from __future__ import annotations

from collections.abc import Iterator

from doctor.model import ABSENT, Fix, Report
from doctor.solver.install_plan import InstallPlan

from .shell import flat, fragment
from .style import Style


def fixes(report: Report, style: Style) -> str:
    """Lines for `dependencies:`; comments only where no package changes."""
    return fragment(report, _dependencies)


def _dependencies(report: Report, fix: Fix, pins: InstallPlan) -> Iterator[str]:
    from doctor.solver.install_plan import conda_names

    names = conda_names()
    yield "# conda's solver was not asked, and the verdict is for the registry's builds: conda's bring the CUDA and"
    yield "# cuDNN of their channel. Ask it with `conda env update --dry-run`, then run `attn-doctor check` in there"
    if pins.removed:
        yield f"# first: pip uninstall -y {' '.join(pins.removed)}"
    yield from (f"# {flat(text)}" for text in pins.told)
    yield from ("channels:", "  - conda-forge", "dependencies:")
    python = report.facts.value("python.version")
    if python not in (None, ABSENT):
        yield f"  - python ={'.'.join(str(python).split('.')[:2])}"
    wanted: dict[str, str] = {}  # conda's name → the line
    left = []
    for line in (*pins.changed, *pins.held, *pins.built):
        name = names.get(line.package)
        if name is None:
            left.append(line)
            continue
        build = " cuda*" if name == "pytorch" else ""
        told = flat(line.why) + (f" ({line.package} in the registry)" if name != line.package else "")
        wanted.setdefault(name, f"  - {name} =={line.version.partition('+')[0]}{build}  # {told}")
    if pins.cuda:
        wanted["cuda-version"] = f"  - cuda-version ={pins.cuda}  # what the registry's torch is built for"
    if pins.cudnn:
        wanted["cudnn"] = (
            f"  - cudnn >={pins.cudnn},<{int(pins.cudnn.split('.')[0]) + 1}  # what the registry's torch brings"
        )
    yield from wanted.values()
    if left:
        yield from ("  - pip", "  - pip:")
        yield from (f"      - {line.package}{line.extra}=={line.version}  # {flat(line.why)}" for line in left)
