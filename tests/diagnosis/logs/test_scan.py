"""The scan of a log: where patterns match, whatever the blocks, ranks and line breaks."""

import random
import re

import pytest

from doctor.diagnosis.logs import scan as scan_module
from doctor.diagnosis.logs.pattern import Pattern, PatternChoice
from doctor.diagnosis.logs.scan import Scanner, without_prefix
from doctor.rulebook.anchors import anchors_of


def scan(text, *patterns, size=1 << 20, most=16):
    scanner = Scanner([Pattern(pattern, anchors_of(pattern), most) for pattern in patterns])
    data = text.encode() if isinstance(text, str) else text
    for start in range(0, len(data), size):
        scanner.feed(data[start : start + size])
    return scanner, scanner.finish()


def test_a_match_has_its_line_rank_and_surroundings():
    log = "first\n[rank3]: Traceback\n[rank1]: other rank\n[rank3]:   File x.py\n[rank3]: ValueError: no kernel\nlast\n"
    scanner, found = scan(log, "no kernel")
    (match,) = found[0]
    assert (match.line, match.text, match.rank) == (5, "ValueError: no kernel", "3")
    assert "File x.py" in match.around and "other rank" not in match.around
    assert scanner.lines == 6


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_blocks_do_not_change_what_is_found(size):
    rng = random.Random(4)
    lines = [rng.choice(["noise " * rng.randrange(30), "the fault number 17", "x" * 3000]) for _ in range(400)]
    _, found = scan("\n".join(lines), r"fault number \d+", size=size, most=10_000)
    assert [match.line for match in found[0]] == [n for n, line in enumerate(lines, 1) if "fault" in line]


def test_texts_that_overlap_or_start_alike_are_all_found():
    _, found = scan("zz abcd efgh ijkl zz", "abcd", "abcd efgh", "efgh ijkl", "d efg")
    assert sorted(found) == [0, 1, 2, 3]


def test_a_pattern_keeps_its_first_matches():
    _, found = scan("the fault\n" * 5000, "the fault", most=3)
    assert [match.line for match in found[0]] == [1, 2, 3]


def test_a_progress_bar_is_no_part_of_the_message():
    _, found = scan("10%|#\r20%|##\rValueError: broken thing\r30%|###\n", "broken thing")
    assert found[0][0].text == "ValueError: broken thing"


def test_a_line_without_end_is_read_around_the_match():
    _, found = scan("a" * 3_000_000 + " broken thing " + "b" * 3_000_000, "broken thing")
    assert found[0][0].line == 1 and len(found[0][0].text) < 20_000


def test_named_groups_are_kept():
    _, found = scan("cannot import name 'foo' from 'bar'", r"cannot import name '(?P<name>\w+)'")
    assert found[0][0].groups == (("name", "foo"),)


@pytest.mark.parametrize(
    ("line", "rank", "rest"),
    [
        ("[rank12]: text", "12", "text"),
        ("[default3]:text", "3", "text"),
        ("(RayWorkerWrapper pid=77, ip=10.0.0.1) text", "77", "text"),
        ("3: text", "3", "text"),
        ("plain: text", None, "plain: text"),
    ],
)
def test_prefixes_of_ranks(line, rank, rest):
    assert without_prefix(line) == (rank, rest)


WORDS = ["Error: ", "rror: ", "object has", "attr", "no kernel", "alpha", "beta", "1", " x\n", "\n", "\n\n"]
PATTERNS = (
    r"Error: [^\n]{0,40}(?:alpha|beta)", r"rror: [^\n]{0,40}object has", r"(?:Error: |attr)[^\n]{0,9}1",
    r"object has attr", r"rror: x", r"no kernel\s+beta", r"Error: (?i:ALPHA)", r"Error: beta$", r"^Error: 1",
    r"rror: [^\n]*no kernel",
)  # fmt: skip


def expected(pattern, log):
    """Return the lines on which a match starts that reaches into two more lines at most."""
    lines = log.split("\n")
    parts = ((number, line, "\n".join(lines[number - 1 : number + 2])) for number, line in enumerate(lines, 1))
    return [n for n, line, part in parts if (match := re.search(pattern, part, re.M)) and match.start() <= len(line)]


@pytest.mark.parametrize("limits", [(10_000, 10_000), (3, 10_000), (3, 6)])
def test_every_match_is_found_however_often_lines_have_none(monkeypatch, limits):
    """Patterns that are looked for in one step, on their own, or in the end only, match where each of them does."""
    monkeypatch.setattr(scan_module, "_COMMON", limits[0])
    monkeypatch.setattr(scan_module, "GIVEN_UP", limits[1])
    rng = random.Random(11)
    for _ in range(40):
        log = "".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 900)))
        log += rng.choice(("", log[:300] * 20))
        _, found = scan(log, *PATTERNS, size=rng.choice((50, 1000, 1 << 20)), most=100_000)
        for index, pattern in enumerate(PATTERNS):
            assert [match.line for match in found.get(index, ())] == expected(pattern, log), (pattern, log)


def test_the_end_of_a_log_is_searched_for_texts_that_were_given_up(monkeypatch):
    monkeypatch.setattr(scan_module, "_MOST_DIRECT", 0)
    monkeypatch.setattr(scan_module, "GIVEN_UP", 100)
    lines = [f"Error: step {number} gave {number * 7}" for number in range(40_000)]
    lines[50] = lines[20_000] = lines[-5] = "Error: no kernel"
    scanner, found = scan("\n".join(lines), r"Error: \w+ ker", size=1 << 16)
    assert [match.line for match in found[0]] == [51, 39_996] and scanner.common == ("Error: ",)


def test_text_that_repeats_is_passed_over(monkeypatch):
    tried = []
    look = PatternChoice.to_try
    monkeypatch.setattr(PatternChoice, "to_try", lambda *given: tried.append(1) or look(*given))
    block = "Traceback\n  File x\nError: the same\n"
    _, found = scan(block * 20_000 + "Error: no kernel\n" + block * 20_000, "Error: no kernel", "Error: [a-z]+ other")
    assert [match.line for match in found[0]] == [60_001] and len(tried) < 1000
