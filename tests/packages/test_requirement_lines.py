"""Plain Requires-Dist lines mean what `packaging` says they mean."""

import gzip
import json

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from doctor.packages import index as release_index
from doctor.packages.index import Platform, admits, needs_of
from doctor.packages.requirement_lines import marker_holds, read_line
from doctor.util.resources import rules_dir

PLATFORMS = [
    Platform(python, system, machine)
    for python in ("3.8.10", "3.9", "3.11.7", "3.12", "3.13.1")
    for system, machine in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64"))
]
EXTRAS = [frozenset(), frozenset({"pytorch"}), frozenset({"core-cu12", "pytorch"})]


def index_lines():
    lines = set()

    def walk(value):
        if isinstance(value, dict):
            for item in value.values():
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)
        elif isinstance(value, str):
            try:
                Requirement(value)
            except InvalidRequirement:
                return
            lines.add(value)

    with gzip.open(rules_dir() / "index" / "releases.json.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            walk(json.loads(line))
    return sorted(lines)


def by_packaging(line, platform, extras):
    parsed = Requirement(line)
    values = [{**platform.markers, "extra": extra} for extra in ("", *sorted(extras))]
    if parsed.marker is not None and not any(parsed.marker.evaluate(value) for value in values):
        return ()
    return ((release_index.normalized(parsed.name), str(parsed.specifier)),)


def test_every_line_of_the_index_is_read_alike():
    lines = index_lines()
    assert len(lines) > 300
    # All platforms for lines with a marker; a line without one does not look at the platform.
    for line in lines:
        for platform in PLATFORMS if ";" in line else PLATFORMS[:1]:
            for extras in EXTRAS if "extra" in line else EXTRAS[:1]:
                got = tuple((need.package, need.range) for need in needs_of((line,), platform, extras))
                assert got == by_packaging(line, platform, extras), (line, platform, extras)


def test_nearly_every_line_of_the_index_is_plain():
    """What makes the short way worth having."""
    lines = index_lines()
    others = [line for line in lines if read_line(line) is None]
    assert len(others) < len(lines) / 100, others


@pytest.mark.parametrize(
    "line",
    [
        "torch", "torch==2.6.0", "torch (>=2.1,<2.9)", "torch >= 2.1 , < 2.9", "a[b,c]>=1", "A_b.C==1.*",
        "a; python_version<'3.8'", 'a==1; sys_platform=="linux" and extra == "x"', "a~=1.2.3", "a!=1.5",
        "a ==1.0+cu124", "a ()",
        'a; platform_machine=="x86_64" or platform_machine=="aarch64"',
        'a; sys_platform == "linux" and "arm" not in platform_machine', "a; (python_version < '3.8')",
        "a===1.0", "a @ https://example.org/a.whl", "a>=1.0rc1",
    ],
)  # fmt: skip
def test_written_otherwise_they_mean_the_same(line):
    for platform in PLATFORMS:
        for extras in (frozenset(), frozenset({"x"})):
            got = tuple((need.package, need.range) for need in needs_of((line,), platform, extras))
            assert got == by_packaging(line, platform, extras), (platform, extras)


@pytest.mark.parametrize("line", ["", "==1.0", "a b", "a=>1", "a (>=1", "a; nonsense", "a; python_version ? '3'"])
def test_a_line_no_installer_reads_binds_nobody(line):
    assert needs_of((line,), PLATFORMS[0]) == ()


@pytest.mark.parametrize(
    "marker", ["(a == 'b')", "'arm' in platform_machine", "os_name > 'a'", "implementation_name == 'x'"]
)
def test_other_markers_are_left_to_packaging(marker):
    assert marker_holds(marker, PLATFORMS[0].markers, admits) is None
