"""No word of a workload is lost between diagnosis and kernel: it is carried, it is irrelevant, or the run names it."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from doctor.diagnosis.carried_words import (
    CARRIED,
    IRRELEVANT,
    NOT_CARRIED,
    PROGRAMS,
    SIZES,
    changed_words,
    dropped,
    unknown_words,
)
from doctor.diagnosis.confirm import confirm, job_of, words_of
from doctor.diagnosis.job_runs import job_requests
from doctor.facts.kinds import BOOLEAN, INTEGER, LIST, NUMBER, WINDOW
from doctor.facts.vocabulary import TERMS
from doctor.model import (
    Candidate,
    Fact,
    Facts,
    Finding,
    Prediction,
    Reason,
    RunVerdict,
    Severity,
    Verdict,
)
from doctor.rulebook.evaluate import evaluate
from doctor.rulebook.resolver import FactResolver
from doctor.runner.batch import KernelRunner
from doctor.sources.workload.defaults import complete_workload, lay_over
from doctor.sources.workload.huggingface import read_model_config
from tests.helpers.rulebook import builtin_rulebook

ROOT = Path(__file__).parents[2]
#: Programs that run no attention of a job; `measure` gets the words of `sdpa` and those that `speed.py` lists.
OTHER = {"dispatch", "facts", "measure", "rendezvous", "script", "sweep"}
WORDS = [
    key.removeprefix("workload.") for key, term in TERMS.items() if key.startswith("workload.") and not term.derived
]


def another_value(word: str) -> Any:
    """A value of the word that a job without it does not have."""
    term = TERMS[f"workload.{word}"]
    if term.kind == BOOLEAN:
        return term.default is not True
    if term.values:
        return next(value for value in term.values if value != term.default)
    return {INTEGER: 7, NUMBER: 0.25, WINDOW: [5, 0], LIST: ["other"]}.get(term.kind, "other")


def rows_of(table: dict[str, tuple[str, ...]]) -> list[str]:
    return [word for words in table.values() for word in words]


class TestVocabulary:
    def test_every_word_is_declared_once(self):
        declared = Counter([*CARRIED, *rows_of(IRRELEVANT), *rows_of(NOT_CARRIED)])
        assert set(WORDS) - set(declared) == set(), "say in carried_words.py whether a kernel gets these words"
        assert set(declared) - set(WORDS) == set(), "no such words"
        assert [word for word, count in declared.items() if count > 1] == []

    def test_every_reason_is_one(self):
        for reason in (*IRRELEVANT, *NOT_CARRIED):
            assert len(reason.split()) >= 4 and reason[0].islower(), reason

    def test_every_program_that_runs_a_job_is_considered(self):
        there = {path.stem for path in (ROOT / "kernels" / "programs").glob("*.py")} - OTHER
        assert there == set(PROGRAMS)
        named = {name for carriers in CARRIED.values() for name in (*carriers.programs, *carriers.without)}
        assert named <= there and set(SIZES) <= set(CARRIED)

    @pytest.mark.parametrize("kernel", PROGRAMS)
    def test_a_word_reaches_the_kernel_or_is_named(self, kernel):
        for word in WORDS:
            request = {"cp_size": 2, word: another_value(word)}
            named = dropped(kernel, request).get(word)
            if word in CARRIED:
                carriers = CARRIED[word]
                assert (named is None) == (kernel in (*carriers.programs, *carriers.without)), word
            else:
                assert (named is None) == (word in rows_of(IRRELEVANT)), word
            assert word not in dropped(kernel, request, decided=[word])

    def test_a_value_that_changes_nothing_is_not_named(self):
        usual = {word: TERMS[f"workload.{word}"].default for word in WORDS}
        usual |= {word: False for word in ("use_varlen_attn", "remote_code", "sinks", "dataloader_mask")}
        usual |= {"window": [-1, -1], "cp_comm_type": "p2p", "cp_size_a2a": 2}
        for kernel in PROGRAMS:
            assert dropped(kernel, usual) == {}

    def test_a_kernel_that_is_not_declared_carries_nothing(self):
        assert set(dropped("new_program", {"mask": "causal", "softcap": 30.0})) == {"mask", "softcap"}

    def test_rules_with_a_kernel_can_confirm_what_they_fire_for(self):
        """A rule that decides by a word which its own kernel does not carry could never be confirmed or refuted."""
        for rule in builtin_rulebook().rules.values():
            block = rule.stated.get("confirm")
            if not block:
                continue
            decided = {*(block.get("request") or {}), *(block.get("regardless_of") or ())}
            for key, wanted in rule.stated["when"].items():
                word = key.removeprefix("workload.")
                if word in WORDS and word not in rows_of(IRRELEVANT) and wanted != "absent":
                    request = {"cp_size": 2, word: another_value(word)}
                    assert word not in dropped(str(block["kernel"]), request, decided), (rule.id, word)


PROGRAM = "from ..protocol import Refused, Unavailable, step\ndef run(request):\n    {body}\n"


@pytest.fixture
def bench(tmp_path):
    """A folder of kernels to be filled, and the interpreter that runs the tests."""

    class Kernels(KernelRunner):
        def add(self, name, body):
            (self.kernels / f"{name}.py").write_text(PROGRAM.format(body=body))

    return Kernels(sys.executable, 20.0, tmp_path)


def known_of(facts: dict[str, Any]) -> FactResolver:
    return FactResolver(Facts(Fact(key, value, "test") for key, value in facts.items()))


def ask(bench, *findings, facts=None, predictions=(), **workload):
    given = {"workload.framework": "torch_sdpa", "workload.head_dim_qk": 128, **(facts or {})}
    given |= {f"workload.{word}": value for word, value in workload.items()}
    known = known_of(given)
    return confirm(findings, known, predictions, job_of(known, words_of(known)), bench)


HEALTHY = "return {'wrong': False, 'ran': ['flash']}"
WRONG = "return {'wrong': True, 'offenders': ['dq'], 'errors': {'dq': {'rel': 3.0}}, 'bound': {'dq': 0.01}}"
PREDICTED = Prediction(
    "torch",
    "sdpa.efficient",
    True,
    (Candidate("sdpa.efficient", "x", True, ()),),
    fails_at_run=Reason("X002", "m", True),
)


def finding(rule="X001", **block):
    return Finding(rule, "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), (), confirm=block or None)


class TestRuns:
    @pytest.mark.parametrize("body", [HEALTHY, WRONG, "raise RuntimeError('boom')", "raise Refused('no')"])
    def test_a_run_without_a_word_says_nothing_of_the_job(self, bench, body):
        bench.add("sdpa", body)
        result = ask(bench, finding("X002"), predictions=(PREDICTED,), torch_compile=True)
        (run,) = result.runs
        assert run.verdict == RunVerdict.INCONCLUSIVE
        assert "`workload.torch_compile` did not reach the kernel: no program makes this call" in run.reason
        assert run.observed["not_carried"] == {"torch_compile": "no program makes this call"}
        (found,) = result.findings
        assert (found.rule, found.confirmation.verdict, found.severity) == ("X002", "inconclusive", "error")
        assert "workload.torch_compile" in found.confirmation.reason

    def test_another_backend_than_predicted_is_no_news_without_a_word(self, bench):
        bench.add("sdpa", HEALTHY)
        assert ask(bench, predictions=(PREDICTED,)).findings[0].rule == "UNPREDICTED"
        assert ask(bench, predictions=(PREDICTED,), softcap=30.0).findings == ()

    def test_a_failed_import_counts_whatever_the_words_say(self, bench):
        bench.add("sdpa", "step('import torch')\n    raise ImportError('undefined symbol')")
        (found,) = ask(bench, softcap=30.0).findings
        assert (found.rule, found.message) == ("UNPREDICTED", "ImportError: undefined symbol")

    def test_a_word_that_the_program_changed_is_named(self, bench):
        bench.add("sdpa", "return {'wrong': False, 'shrunk': {'mask': ['padding', 'causal'], 'seq_len_q': [9, 8]}}")
        (run,) = ask(bench, mask="padding").runs
        assert (run.verdict, run.observed["not_carried"]) == (
            "inconclusive",
            {"mask": "it was run with causal for padding"},
        )
        assert changed_words("garbage") == {} == changed_words({"mask": 3})

    def test_a_word_of_unknown_value_is_named(self, bench):
        bench.add("sdpa", HEALTHY)
        (run,) = ask(bench, window=None, seq_len_assumed=None).runs
        assert run.observed["not_carried"] == {"window": "its value is not known"}
        assert unknown_words("te_attention", ["workload.sdpa_backend"]) == {}

    def test_the_kernel_of_a_rule_is_held_to_the_same(self, bench):
        bench.add("sdpa", WRONG)
        asked = {"framework": "vllm", "softcap": 30.0, "sdpa_backend": "flash"}
        block = {"kernel": "sdpa", "request": {"backend": "efficient"}, "bad_if_any": [{"wrong": "true"}]}
        (found,) = ask(bench, finding(**block), **asked).findings
        assert found.confirmation.verdict == "inconclusive" and "`workload.softcap`" in found.confirmation.reason
        (found,) = ask(bench, finding(**block, regardless_of="softcap"), **asked).findings
        assert found.confirmation.verdict == "confirmed"


class TestRanks:
    """A rule may name the run over ranks: what counts as its failure decides, and nothing else does."""

    def ask(self, bench, body, gpus=2):
        bench.add("sdpa", HEALTHY)
        bench.add("context_parallel", body)
        facts = {"workload.cp_size": 2, "gpu.count": gpus, "workload.sdpa_backend": "efficient"}
        result = ask(
            bench,
            finding("X002", kernel="context_parallel", bad_if_any=[{"wrong": "true"}]),
            facts=facts,
            predictions=(PREDICTED,),
        )
        return next(item.confirmation for item in result.findings if item.rule == "X002")

    @pytest.mark.parametrize(
        ("body", "verdict"),
        [
            (WRONG, "confirmed"),
            ("raise RuntimeError('NCCL Error 1: unhandled cuda error')", "inconclusive"),
            ("raise Unavailable('no GPU')", "inconclusive"),
            ("return {'wrong': False, 'ran': ['efficient']}", "refuted"),
        ],
    )
    def test_a_crash_of_the_ranks_is_no_wrong_number(self, bench, body, verdict):
        said = self.ask(bench, body)
        assert (said.kernel, said.verdict) == ("context_parallel", verdict)
        assert said.request["engine"] == "torch.allgather" and said.request["sdpa_backend"] == "efficient"
        assert verdict != "confirmed" or said.reason == "the result is wrong: dq is off by 3 (bound 0.01)"

    def test_without_a_second_gpu_one_rank_decides_nothing(self, bench):
        said = self.ask(bench, "raise KeyError('must not run')", gpus=1)
        assert (said.kernel, said.verdict) == ("sdpa", "inconclusive")

    def test_what_a_run_confirmed_is_foreseen(self, bench):
        bench.add("sdpa", WRONG)
        block = {"kernel": "sdpa", "request": {"backend": "default"}, "bad_if_any": [{"wrong": "true"}]}
        warned = finding(**block)._replace(severity=Severity.WARNING)
        result = ask(bench, warned)
        assert [(item.rule, item.confirmation.verdict) for item in result.findings] == [("X001", "confirmed")]
        assert len(result.runs) == 1

    def test_the_backend_that_ran_over_ranks_is_held_against_the_prediction(self, bench):
        bench.add("sdpa", HEALTHY)
        bench.add("context_parallel", "return {'wrong': False, 'ran': ['cudnn']}")
        facts = {"workload.cp_size": 2, "gpu.count": 2}
        quiet = PREDICTED._replace(fails_at_run=None)
        (found,) = ask(bench, facts=facts, predictions=(quiet,)).findings
        assert (found.rule, found.message) == (
            "UNPREDICTED",
            "torch took sdpa.cudnn, where sdpa.efficient was predicted",
        )
        assert found.confirmation.kernel == "context_parallel"


def requests_of(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    known = known_of({"workload.head_dim_qk": 128, **facts})
    return dict(job_requests(known, job_of(known, words_of(known))))


TE = {"workload.framework": "megatron", "transformer-engine.version": "2.3.0", "gpu.count": 2}


class TestTranslation:
    """A word that a request expresses in another way is not lost."""

    def test_a_pinned_backend_goes_to_every_program_of_torch(self):
        requests = requests_of(
            {
                "workload.framework": "torch_sdpa", "workload.sdpa_backend": "efficient", "workload.cp_size": 2,
                "gpu.count": 2, "workload.qkv_interleaved": True,
            }
        )  # fmt: skip
        assert requests["strided_qkv"]["backends"] == ["sdpa.efficient"]
        assert {requests[name]["sdpa_backend"] for name in ("sdpa", "context_parallel")} == {"efficient"}

    def test_what_follows_from_the_job_is_carried_too(self):
        (request,) = requests_of({"workload.framework": "torch_sdpa", "workload.sliding_window": 64}).values()
        assert request["window"] and dropped("sdpa", request) == {}
        assert "dropout" not in request, "what is usual is not spelled out"

    def test_a_rank_of_tensor_parallelism_has_its_share_of_the_heads(self):
        given = {**TE, "workload.num_heads": 32, "workload.num_kv_heads": 2, "workload.tensor_parallel_size": 4}
        request = requests_of(given)["te_attention"]
        assert (request["num_heads"], request["num_kv_heads"]) == (8, 1)
        assert dropped("te_attention", request) == {}
        odd = requests_of({**given, "workload.tensor_parallel_size": 5})["te_attention"]
        assert set(dropped("te_attention", odd)) == {"tensor_parallel_size"}

    @pytest.mark.parametrize(
        ("pinned", "switches"),
        [("flash", "100"), ("fused", "010"), ("unfused", "001"), ("auto", "111"), ("local", None)],
    )
    def test_megatrons_attention_backend_becomes_variables(self, pinned, switches):
        requests = requests_of({**TE, "workload.attention_backend": pinned, "workload.cp_size": 2})
        for kernel in ("te_attention", "context_parallel"):
            env = requests[kernel].get("env")
            assert (None if env is None else "".join(env.values())) == switches
            assert ("attention_backend" in dropped(kernel, requests[kernel])) == (switches is None)

    @pytest.mark.parametrize(
        ("facts", "lost"),
        [
            ({"workload.framework": "torch_sdpa", "workload.cp_comm_type": "p2p"}, {"cp_comm_type"}),
            ({"workload.framework": "torch_sdpa", "workload.cp_comm_type": "all_gather"}, set()),
            ({"workload.framework": "torch_sdpa", "workload.cp_comm_type": "a2a"}, set()),
            ({**TE, "workload.cp_comm_type": "a2a+p2p", "workload.cp_size_a2a": 2}, set()),
            ({**TE, "workload.qkv_layout": "thd_thd_thd", "workload.packing": True}, set()),
            ({**TE, "workload.qkv_layout": "bshd_bshd_bshd", "workload.packing": True}, {"packing"}),
            ({**TE, "workload.softcap": 30.0}, {"softcap"}),
        ],
    )
    def test_ranks_communicate_as_the_job_does_or_it_is_named(self, facts, lost):
        request = requests_of({"workload.cp_size": 2, "gpu.count": 2, **facts})["context_parallel"]
        assert set(dropped("context_parallel", request)) == lost

    def test_a_step_of_all_gather_is_run_as_that_step(self):
        given = {**TE, "workload.mask": "causal", "workload.cp_comm_type": "all_gather", "workload.cp_size": 4}
        step = requests_of({**given, "workload.seq_len_q": 4096, "workload.seq_len_kv": 4096})["cudnn_sdpa"]
        assert (step["seq_len_q"], step["seq_len_kv"], step["mask"]) == (512, 4096, "causal_bottom_right")
        assert dropped("cudnn_sdpa", step) == {}
        padded = requests_of({**given, "workload.mask": "padding_causal"})["cudnn_sdpa"]
        assert padded["mask"] == "padding_causal_bottom_right", "the program then says that it does not run it"


#: Example models whose attention has what no program computes; the kernels run all others as they are.
LOST = {
    "gemma-2-9b": {"softcap"},
    "gemma-3-4b": {"multimodal_prefix_bidirectional"},
    "gemma-3-27b": {"multimodal_prefix_bidirectional"},
    "gpt-oss-20b": {"sinks", "softmax_type"},
}


def test_usual_models_lose_no_word():
    """A word that is declared too strictly would make the runs of usual jobs inconclusive."""
    facts = Facts(Fact(key, value, "test") for key, value in MACHINE.items())
    models = sorted((ROOT / "examples" / "models").glob("*.json"))
    assert len(models) > 15
    for model in models:
        known = evaluate(builtin_rulebook(), complete_workload(lay_over(facts, read_model_config(model)))).known
        requests = job_requests(known, job_of(known, words_of(known)))
        assert requests, model.name
        for kernel, request in requests:
            assert set(dropped(kernel, request)) == LOST.get(model.stem, set()), (model.name, kernel)


MACHINE = {
    "torch.version": "2.11.0", "torch.cuda": "13.0", "cudnn.version": "9.19.0", "gpu.sm": "9.0", "gpu.count": 1,
    "transformers.version": "5.17.0", "distributions.complete": True,
}  # fmt: skip
