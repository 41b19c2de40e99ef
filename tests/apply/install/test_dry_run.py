"""What the resolver gets as input, and what is made of its answer."""

from __future__ import annotations

import pytest

from doctor.apply.install.dry_run import Question, metadata, platform_tag, resolve
from doctor.apply.install.installers import PIP, Installer, find_installer
from doctor.packages.index import load_index
from doctor.packages.platform import Platform

LINUX = Platform("3.11.7")
REFUSED = {"code": 1, "err": "error: No solution found when resolving dependencies\n  cause: Because {} .\n"}


def refused(reason: str) -> dict[str, object]:
    return {**REFUSED, "err": str(REFUSED["err"]).format(reason)}


def ask(uv, question, timeout=30.0):
    return resolve(question, Installer("uv", (str(uv.program),)), load_index(), timeout=timeout)


def test_everything_is_checked_at_once(uv):
    question = Question(
        pins=("transformers==4.42.4",), held=("torch==2.4.0",), others={"tokenizers": "0.19.1"}, needs=("numpy<2",),
        built=("flash-attn==2.6.3",), platform=LINUX, glibc="2.35",
    )  # fmt: skip
    answer = ask(uv, question)
    assert answer.outcome is True and answer.reason == "" and answer.left_out == ()
    assert (uv.folder / "asked.txt").read_text().splitlines() == [
        "transformers==4.42.4", "torch==2.4.0", "numpy<2", "flash-attn==2.6.3", "tokenizers==0.19.1",
    ]  # fmt: skip
    words = uv.calls("compile")[0]
    assert words[words.index("--python-version") + 1] == "3.11.7"
    assert words[words.index("--python-platform") + 1] == "x86_64-manylinux_2_35"
    assert 'name = "flash-attn"' in (uv.folder / "uv.toml").read_text()


def test_what_stays_may_move_if_it_must_and_is_reported(uv):
    uv.plan(compile=[refused("a needs tokenizers>=0.21"), {"resolved": "a==2\ntokenizers==0.21.0\nnumpy==1.26.4\n"}])
    answer = ask(uv, Question(("a==2",), others={"tokenizers": "0.19.1", "numpy": "1.26.4"}, platform=LINUX))
    assert answer.outcome is True
    assert answer.reason == "also changes: tokenizers 0.19.1 → 0.21.0"
    assert "tokenizers" in (uv.folder / "asked.txt").read_text().splitlines()


def test_what_no_registry_has_is_left_out_and_named(uv):
    uv.plan(compile=[refused("my-lib was not found in the package registry and you require my-lib==1.0"), {}])
    answer = ask(uv, Question(("a==2",), others={"my-lib": "1.0", "numpy": "1.26.4"}, platform=LINUX))
    assert answer.outcome is True and answer.left_out == ("my-lib",)
    assert (uv.folder / "asked.txt").read_text().splitlines() == ["a==2", "numpy==1.26.4"]


def test_where_an_index_did_not_answer_nothing_is_left_out(uv):
    """What it did not report is not gone: another query without it would prove another fix."""
    silent = refused("my-lib was not found in the package registry and you require my-lib==1.0")
    silent["err"] += "\nhint: An index (https://registry.invalid/simple) returned a 403 Forbidden error.\n"
    uv.plan(compile=[silent, {}])
    answer = ask(uv, Question(("a==2",), others={"my-lib": "1.0"}, platform=LINUX))
    assert answer.outcome is None and answer.left_out == () and "could not be reached" in answer.reason
    assert len(uv.calls("compile")) == 1


def test_a_missing_pin_of_the_fix_itself_is_a_refusal(uv):
    uv.plan(compile=[refused("there is no version of a==2 and you require a==2")])
    answer = ask(uv, Question(("a==2",), platform=LINUX))
    assert answer.outcome is False and "no version of a==2" in answer.reason


def test_what_only_its_source_could_show_is_left_out_and_named(uv):
    """A system's own pygobject speaks neither for the fix nor against it."""
    built = "error: Failed to download and build `pygobject==3.42.2`\n  cause: Build backend failed\n"
    uv.plan(compile=[{"code": 1, "err": built}, {}])
    answer = ask(uv, Question(("a==2",), others={"pygobject": "3.42.2"}, platform=LINUX))
    assert answer.outcome is True and answer.left_out == ("pygobject",)
    uv.plan(compile=[{"code": 1, "err": built}])
    assert ask(uv, Question(("pygobject==3.42.2",), platform=LINUX)).outcome is None, "one of the fix itself is not"


def test_a_held_release_that_was_withdrawn_does_not_speak_against_the_fix(uv):
    gone = refused("vllm==0.8.0 depends on xgrammar==0.1.16 which was deleted, vllm==0.8.0 cannot be used")
    uv.plan(compile=[gone, gone, {}])  # with all; alone; without it
    answer = ask(uv, Question(("a==2",), held=("vllm==0.8.0",), stays=("vllm==0.8.0",), platform=LINUX))
    assert answer.outcome is True and answer.left_out == ("vllm==0.8.0",)
    assert len(uv.calls("compile")) == 3


def test_a_held_release_that_clashes_with_the_fix_does(uv):
    clash = refused("vllm==0.8.0 depends on a==1 and you require a==2")
    uv.plan(compile=[clash, {}, clash])  # with all; alone it resolves
    answer = ask(uv, Question(("a==2",), held=("vllm==0.8.0",), stays=("vllm==0.8.0",), platform=LINUX))
    assert answer.outcome is False and "depends on a==1" in answer.reason


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"code": 2, "err": "error: Failed to fetch: x\n  cause: dns error\n"}, "package index could not be reached"),
        ({"sleep": 30}, "gave no answer within 1 s"),
        ({"code": 101, "err": "thread 'main' panicked\n"}, "ended with status 101"),
    ],
)
def test_no_answer_is_no_refusal(uv, step, words):
    uv.plan(compile=[step])
    answer = ask(uv, Question(("a==2",), platform=LINUX), timeout=1.0)
    assert answer.outcome is None and words in answer.reason


def test_noise_changes_nothing(uv):
    uv.plan(compile=[{"out": "WARNING: no solution found\n" * 2000, "err": "Failed to fetch\n" * 2000}])
    assert ask(uv, Question(("a==2",), platform=LINUX)).outcome is True


def test_metadata_of_old_sources_comes_from_the_index():
    text = metadata(("flash-attn==2.7.4.post1", "torch==2.6.0", "einops"), LINUX, load_index())
    assert text.count("[[dependency-metadata]]") == 1
    assert 'version = "2.7.4.post1"' in text and 'requires-dist = ["torch", "einops"]' in text


@pytest.mark.parametrize(
    ("platform", "glibc", "tag"),
    [
        (Platform("3.11", "Linux", "x86_64"), "2.35", "x86_64-manylinux_2_35"),
        (Platform("3.11", "Linux", "x86_64"), "2.30", "x86_64-manylinux_2_28"),
        (Platform("3.11", "Linux", "aarch64"), "2.99", "aarch64-manylinux_2_40"),
        (Platform("3.11", "Linux", "x86_64"), None, "x86_64-unknown-linux-gnu"),
        (Platform("3.11", "Linux", "x86_64"), "2.5", "x86_64-unknown-linux-gnu"),
        (Platform("3.11", "Darwin", "arm64"), None, "aarch64-apple-darwin"),
        (Platform("3.11", "Windows", "AMD64"), None, "x86_64-pc-windows-msvc"),
    ],
)
def test_the_platform_in_uvs_words(platform, glibc, tag):
    assert platform_tag(platform, glibc) == tag


def test_pip_says_that_it_cannot_answer_for_another_python(tmp_path):
    pip = Installer(PIP, ("/bin/python", "-m", "pip"), (24, 0), "3.11")
    answer = resolve(Question(("a==2",), platform=Platform("3.10.4")), pip, load_index(), timeout=5)
    assert answer.outcome is None and "3.11" in answer.reason and "3.10.4" in answer.reason


def test_uv_comes_before_pip_and_a_broken_one_is_reported(uv, monkeypatch):
    found, _ = find_installer(None)
    assert found is not None and (found.kind, found.version) == ("uv", (0, 9, 9))
    uv.plan(version=[{"code": 1, "err": "cannot run\n"}])
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    found, why = find_installer(None)
    assert found is None and "neither uv nor pip" in why and "cannot run" in why
