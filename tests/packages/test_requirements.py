"""Requirements mean what `packaging` says, for every line of the index and every platform."""

from __future__ import annotations

import pytest
from packaging.requirements import InvalidRequirement, Requirement

from doctor.packages import needs
from doctor.packages.index import load_index
from doctor.packages.needs import needs_of
from doctor.packages.platform import Platform
from doctor.packages.specifiers import admits, normalized

PLATFORMS = [
    Platform(python, system, machine)
    for python in ("3.8.10", "3.9", "3.11.7", "3.13.1")
    for system, machine in (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64"))
]


def by_packaging(line: str, platform: Platform, extras: frozenset[str]) -> tuple[tuple[str, str], ...]:
    parsed = Requirement(line)
    values = [{**platform.markers, "extra": extra} for extra in ("", *sorted(extras))]
    if parsed.marker is not None and not any(parsed.marker.evaluate(value) for value in values):
        return ()
    return ((normalized(parsed.name), str(parsed.specifier)),)


@pytest.mark.parametrize(
    "line",
    [
        "torch", "torch==2.6.0", "torch (>=2.1,<2.9)", "torch >= 2.1 , < 2.9", "a[b,c]>=1", "A_b.C==1.*",
        "a; python_version<'3.8'", 'a==1; sys_platform=="linux" and extra == "x"', "a~=1.2.3", "a!=1.5",
        "a ==1.0+cu124",
        'a; platform_machine=="x86_64" or platform_machine=="aarch64"',
        'a; sys_platform == "linux" and "arm" not in platform_machine', "a; (python_version < '3.8')",
        "a===1.0", "a @ https://example.org/a.whl", "a>=1.0rc1",
    ],
)  # fmt: skip
def test_markers_and_extras_count(line: str):
    for platform in PLATFORMS:
        for extras in (frozenset(), frozenset({"x"})):
            got = tuple((need.package, need.range) for need in needs_of((line,), platform, extras))
            assert got == by_packaging(line, platform, extras), (platform, extras)


def test_every_line_on_record_means_what_packaging_says():
    index = load_index()
    lines = {line for name in index.packages for item in index.releases(name).values() for line in item.requires}
    read = 0
    for line in sorted(lines):
        read += needs._read(line) is not None
        for platform in (PLATFORMS[0], PLATFORMS[5], PLATFORMS[-1]):
            got = tuple((need.package, need.range) for need in needs.needs_of((line,), platform))
            try:
                expected = by_packaging(line, platform, frozenset())
            except InvalidRequirement:
                expected = ()
            assert got == expected, (line, platform)
    assert read > 0.9 * len(lines)  # else the parser of `packaging` is imported by most checks


@pytest.mark.parametrize(
    "line",
    ["a>=1,", "a>=1,,<2", "a,", "a ()", "a (>=1", "a>=1)", "a-", "a[b]", "a[b, c]>=1", "a[]", "a;",
     "a ; extra == 'A_x'",
     "a; extra == 'x' and python_version < '3.10'", "a; python_version in '3.9 3.11'", "a; python_version == '3.11.*'",
     "a; python_full_version > '3.11.1'", "a; os_name != 'nt'", "a; 'linux' == sys_platform", "a === 1.0", "a>=1 <2",
     "a; sys_platform == 'linux' or python_version < '3'", "a; platform_release >= '5'"],
)  # fmt: skip
def test_unusual_lines_mean_what_packaging_says(line: str):
    for platform in PLATFORMS:
        for extras in (frozenset(), frozenset({"x", "a-x"})):
            try:
                expected = by_packaging(line, platform, extras)
            except InvalidRequirement:
                expected = ()
            got = tuple((need.package, need.range) for need in needs.needs_of((line,), platform, extras))
            assert got == expected, (platform, extras)


@pytest.mark.parametrize(
    ("line", "pin"),
    [("a==1.0", "1.0"), ("a===1.0", "1.0"), ("a==1.0+cu124", "1.0+cu124"), ("a==1.*", None), ("a==1,>0", None),
     ("a", None)],
)  # fmt: skip
def test_a_pin_is_the_only_version_left(line: str, pin: str | None):
    (need,) = needs_of((line,), PLATFORMS[0])
    assert need.pin == pin


@pytest.mark.parametrize("line", ["", "==1.0", "a b", "a=>1", "a (>=1", "a; nonsense", "a; python_version ? '3'"])
def test_a_line_that_no_installer_reads_requires_nothing(line: str):
    assert needs_of((line,), PLATFORMS[0]) == ()


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [("", "1.0", True), (">=2,<3", "2.9rc1", True), (">=2", "1.9", False), ("==2.6.0", "2.6.0+cu126", True),
     ("==2.6.0+cu126", "2.6.0", False), ("!=2.5.*", "2.5.1", False)],
)  # fmt: skip
def test_a_range_admits_pre_releases_and_local_builds(text: str, version: str, expected: bool):
    assert admits(text, version) is expected
