"""Findings meet real kernel programs, run in a real interpreter; nothing of the contract is replaced."""

import sys

import pytest

from doctor.bench import Bench
from doctor.confirm import confirm, job_of, matches, typed, verdict_of
from doctor.known import Known
from doctor.model import Candidate, Fact, Facts, Finding, Prediction
from doctor.target import Answer

PROGRAM = """
from _probe import Refused, Unavailable, main
def run(request):
{body}
if __name__ == "__main__":
    main(run)
"""


@pytest.fixture
def bench(tmp_path):
    """A folder of kernels to be filled, and the interpreter that runs the tests."""

    class Kernels(Bench):
        def add(self, name, body):
            lines = "\n".join("    " + line for line in body.splitlines())
            (self.kernels / f"{name}.py").write_text(PROGRAM.format(body=lines))

    return Kernels(sys.executable, 20.0, tmp_path)


def finding(kernel="demo", bad=({"wrong": "true"},), severity="error", request=None, rule="X001"):
    block = {"kernel": kernel, "request": request or {}, "bad_if_any": list(bad)}
    return Finding(rule, "n", severity, "fires", "s", "m", "", (), (), confirm=block)


def known(**workload):
    given = {"workload.framework": "vllm"} | {f"workload.{key}": value for key, value in workload.items()}
    extra = {"transformer-engine.version": "2.3.0"} if workload.get("framework") == "transformer_engine" else {}
    return Known(Facts(Fact(key, value, "test") for key, value in (given | extra).items()))


def ask(bench, *findings, predictions=(), **workload):
    facts = known(**workload)
    return confirm(findings, facts, predictions, job_of(facts, [f"workload.{key}" for key in workload]), bench)


class TestFindings:
    def test_confirmed_keeps_its_severity_and_carries_what_was_seen(self, bench):
        bench.add("demo", "return {'wrong': request['head_dim_qk'] == 192, 'seen': request}")
        (settled,) = ask(bench, finding(request={"via": "frontend", "seq_len_q": "2048"}), head_dim_qk=192).findings
        assert settled.severity == "error"
        assert settled.confirmation.verdict == "confirmed"
        assert settled.confirmation.observed["seen"] == {"head_dim_qk": 192, "via": "frontend", "seq_len_q": 2048}

    def test_refuted_stays_as_a_note_behind_the_others(self, bench):
        bench.add("demo", "return {'wrong': False}")
        plain = Finding("X002", "n", "warning", "fires", "s", "m", "", (), ())
        settled = ask(bench, finding(), plain).findings
        assert [(item.rule, item.severity) for item in settled] == [("X002", "warning"), ("X001", "note")]
        assert settled[1].confirmation.verdict == "refuted"

    @pytest.mark.parametrize(
        ("body", "outcome"),
        [
            ("raise Unavailable('torch sees no CUDA device')", "unavailable"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed"),
            ("return {}", "ran"),
            ("raise RuntimeError('something else')", "failed"),
        ],
    )
    def test_no_answer_to_the_question_is_inconclusive(self, bench, body, outcome):
        bench.add("demo", body)
        (settled,) = ask(bench, finding()).findings
        assert (settled.confirmation.outcome, settled.confirmation.verdict) == (outcome, "inconclusive")
        assert settled.severity == "error"

    def test_a_crash_confirms_where_the_rule_says_so(self, bench):
        bench.add("demo", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
        (settled,) = ask(bench, finding(bad=({"outcome": ["refused", "crashed"]},))).findings
        assert settled.confirmation.verdict == "confirmed"
        assert "SIGSEGV" in settled.confirmation.reason

    def test_a_crash_costs_only_its_own_case(self, bench):
        bench.add("demo", "import os\nif request.get('die'): os._exit(3)\nreturn {'wrong': True, 'pid': os.getpid()}")
        first, second, third = ask(
            bench,
            finding(rule="X001", request={"a": "1"}),
            finding(rule="X002", request={"die": "true"}),
            finding(rule="X003", request={"a": "2"}),
        ).findings
        assert [item.confirmation.verdict for item in (first, second, third)] == [
            "confirmed",
            "inconclusive",
            "confirmed",
        ]

    def test_equal_questions_are_asked_once(self, bench, tmp_path):
        log = tmp_path / "log"
        bench.add("demo", f"open({str(log)!r}, 'a').write('x')\nreturn {{'wrong': True}}")
        ask(bench, finding(rule="X001"), finding(rule="X002"))
        assert log.read_text() == "x"

    @pytest.mark.parametrize("name", ["nowhere", "_probe", "../etc/passwd", "None"])
    def test_a_rule_that_names_no_kernel_is_inconclusive(self, bench, name):
        (settled,) = ask(bench, finding(kernel=name)).findings
        assert settled.confirmation.verdict == "inconclusive"
        assert settled.confirmation.reason == f"there is no kernel `{name}`"

    def test_an_interpreter_that_does_not_start_is_inconclusive(self, bench):
        bench.add("demo", "return {}")
        gone = Bench("/nonexistent/python", 5.0, bench.kernels)
        (settled,) = confirm([finding()], known(), (), {}, gone).findings
        assert settled.confirmation.verdict == "inconclusive"
        assert "cannot start" in settled.confirmation.reason


class TestTheJobItself:
    HEALTHY = "return {'wrong': False, 'ran': ['flash'], 'errors': {'out': {'rel': 0.002}}}"

    def test_torch_jobs_go_through_sdpa_as_torch_chooses(self, bench):
        bench.add("sdpa", self.HEALTHY)
        result = ask(bench, framework="torch_sdpa", head_dim_qk=128, window=(5, 0))
        (run,) = result.runs
        assert run.request == {"framework": "torch_sdpa", "head_dim_qk": 128, "window": [5, 0], "backend": "default"}
        assert (run.verdict, run.reason) == ("healthy", "on flash, right to 0.002")
        assert result.findings == ()

    def test_a_wrong_result_that_no_rule_foresaw_is_a_finding(self, bench):
        bench.add(
            "sdpa",
            "return {'wrong': True, 'offenders': ['dq'], 'bound': {'out': 0.006, 'grad': 0.009},"
            " 'errors': {'out': {'rel': 0.001}, 'dq': {'rel': 3.7}}}",
        )
        result = ask(bench, framework="torch_sdpa", head_dim_qk=128)
        (found,) = result.findings
        assert (found.rule, found.severity) == ("UNPREDICTED", "error")
        assert found.message == "the result is wrong: dq is off by 3.7 (bound 0.009)"
        assert found.confirmation.kernel == "sdpa"

    def test_a_foreseen_failure_is_not_a_second_finding(self, bench):
        bench.add("sdpa", "raise RuntimeError('boom')")
        expected = Finding("X002", "n", "error", "fires", "s", "m", "", (), ())
        result = ask(bench, expected, framework="torch_sdpa", head_dim_qk=128)
        assert [item.rule for item in result.findings] == ["X002"]
        assert result.runs[0].verdict == "failed"
        assert result.notes == ("the job's own attention failed when it was run here, as the findings say",)

    def test_transformer_engine_contradicting_the_prediction_is_a_warning(self, bench):
        bench.add("te_attention", "return {'selected': 'te.unfused', 'wrong': False}")
        candidate = Candidate("te.fused", "FusedAttention", True, ())
        predicted = Prediction("transformer_engine", "te.fused", True, (candidate,))
        result = ask(bench, predictions=(predicted,), framework="transformer_engine", head_dim_qk=128)
        (found,) = result.findings
        assert (found.rule, found.severity) == ("UNPREDICTED", "warning")
        assert found.message == "transformer_engine took te.unfused, where te.fused was predicted"
        agreeing = Prediction("transformer_engine", "te.unfused", True, (candidate,))
        assert ask(bench, predictions=(agreeing,), framework="transformer_engine", head_dim_qk=128).findings == ()

    def test_a_refusal_that_no_rule_foresaw_is_a_finding(self, bench):
        bench.add("te_attention", "raise Refused('No dot product attention backend is available')")
        result = ask(bench, framework="transformer_engine", head_dim_qk=128)
        assert result.findings[0].rule == "UNPREDICTED"
        assert result.findings[0].message == "No dot product attention backend is available"

    def test_interleaved_and_bottom_right_jobs_bring_their_kernels(self, bench):
        for name in ("strided_qkv", "cudnn_sdpa", "te_attention"):
            bench.add(name, "return {'wrong': False}")
        result = ask(
            bench, framework="transformer_engine", head_dim_qk=64, mask="causal", cp_size=2,
            cp_comm_type="all_gather", qkv_interleaved=True,
        )  # fmt: skip
        assert {run.kernel: run.request.get("mask") for run in result.runs} == {
            "te_attention": "causal",
            "strided_qkv": "causal",
            "cudnn_sdpa": "causal_bottom_right",
        }

    def test_a_refusing_cudnn_is_no_news_for_a_job_that_runs_elsewhere(self, bench):
        bench.add("cudnn_sdpa", "raise Refused('no engine')")
        bench.add("sdpa", self.HEALTHY)
        result = ask(bench, framework="torch_sdpa", head_dim_qk=64, mask="causal_bottom_right")
        assert [(run.kernel, run.verdict) for run in result.runs] == [
            ("sdpa", "healthy"),
            ("cudnn_sdpa", "inconclusive"),
        ]
        assert result.findings == ()

    def test_a_job_without_a_shape_is_not_made_up(self, bench):
        bench.add("sdpa", "raise RuntimeError('must not run')")
        assert ask(bench, framework="torch_sdpa").runs == ()


@pytest.mark.parametrize(
    ("condition", "observed", "holds"),
    [
        ({"outcome": ["refused", "failed"]}, {"outcome": "refused"}, True),
        ({"outcome": ["refused", "failed"]}, {"outcome": "ran"}, False),
        ({"wrong": "true"}, {"wrong": True}, True),
        ({"wrong": "true"}, {"wrong": False}, False),
        ({"wrong": "true"}, {}, None),
        ({"errors.out.rel": ">0.01"}, {"errors": {"out": {"rel": 0.02}}}, True),
        ({"errors.out.rel": ">0.01,<0.02"}, {"errors": {"out": {"rel": 0.02}}}, False),
        ({"errors.out.rel": ">0.01"}, {"errors": {"out": {"rel": "nan"}}}, True),
        ({"errors.out.rel": ">0.01"}, {"errors": {"out": {"rel": "inf"}}}, True),
        ({"errors.out.rel": ">0.01"}, {"errors": {"out": {"rel": "broken"}}}, None),
        ({"backends.sdpa.flash.contiguous.wrong": "true"},
         {"backends": {"sdpa.flash": {"contiguous": {"wrong": True}}}}, True),
        ({"wrong_backends": "sdpa.cudnn"}, {"wrong_backends": ["sdpa.math", "sdpa.cudnn"]}, True),
        ({"wrong_backends": "sdpa.cudnn"}, {"wrong_backends": []}, False),
        ({"a": "1", "b": "2"}, {"a": 1}, None),
        ({"a": "1", "b": "2"}, {"b": 3}, False),
        ({"any": [{"a": "1"}, {"b": "2"}]}, {"b": 2}, True),
        ({"any": [{"a": "1"}, {"b": "2"}]}, {"b": 3}, None),
        ({"all": [{"a": "1"}, {"b": "2"}]}, {"b": 3}, False),
        ({"not": {"a": "1"}}, {"a": 2}, True),
        ({"not": {"a": "1"}}, {}, None),
    ],
)  # fmt: skip
def test_conditions_on_observations_are_three_valued(condition, observed, holds):
    assert matches(condition, observed) is holds


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (Answer("ran", {"wrong": True}), "confirmed"),
        (Answer("ran", {"wrong": False}), "refuted"),
        (Answer("refused", {"wrong": False}), "refuted"),
        (Answer("unavailable", {"wrong": False}), "inconclusive"),
        (Answer("timeout"), "inconclusive"),
        (Answer("ran", {}), "inconclusive"),
    ],
)
def test_only_an_answer_refutes(answer, verdict):
    assert verdict_of([{"wrong": "true"}], answer) == verdict


def test_without_conditions_nothing_is_settled():
    assert verdict_of([], Answer("ran", {})) == "inconclusive"


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("return {'wrong': True}", "confirmed"),
        ("return {'wrong': False}", "refuted"),
        ("return {}", "inconclusive"),
        ("raise Refused('no')", "confirmed"),
        ("raise RuntimeError('no')", "confirmed"),
        ("raise Unavailable('no')", "inconclusive"),
    ],
)
def test_a_rule_that_only_names_a_kernel_means_any_trouble(bench, body, verdict):
    bench.add("demo", body)
    plain = Finding("X001", "n", "error", "fires", "s", "m", "", (), (), confirm={"kernel": "demo"})
    assert ask(bench, plain).findings[0].confirmation.verdict == verdict


def test_requests_of_rules_get_the_types_of_the_vocabulary():
    given = {"head_dim_qk": "128", "mask": "causal", "window": ["8", "0"], "control": "true", "layouts": ["a", "2"]}
    assert typed(given) == {
        "head_dim_qk": 128, "mask": "causal", "window": [8, 0], "control": True, "layouts": ["a", 2],
    }  # fmt: skip
