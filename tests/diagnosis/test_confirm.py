"""Findings meet real kernel programs, run in a real interpreter; nothing of the contract is replaced."""

import sys
from pathlib import Path

import pytest

from doctor.diagnosis.confirm import Judged, confirm, job_of, typed, verdict_of
from doctor.diagnosis.job_runs import job_requests
from doctor.diagnosis.pipeline import diagnose
from doctor.diagnosis.request import Request
from doctor.errors import DoctorError
from doctor.model import (
    Candidate,
    Confirmation,
    Fact,
    Facts,
    Finding,
    Prediction,
    Reason,
    RunVerdict,
    Severity,
    Verdict,
)
from doctor.report.formats import renderer
from doctor.report.style import Style
from doctor.rulebook.conditions import Observations, observation, parse_conditions
from doctor.rulebook.resolver import FactResolver
from doctor.runner.batch import KernelRunner
from doctor.runner.result import KernelResult

PROGRAM = """
from ..protocol import Refused, Unavailable, step
def run(request):
{body}
"""


@pytest.fixture
def bench(tmp_path):
    """A folder of kernels to be filled, and the interpreter that runs the tests."""

    class Kernels(KernelRunner):
        def add(self, name, body):
            lines = "\n".join("    " + line for line in body.splitlines())
            (self.kernels / f"{name}.py").write_text(PROGRAM.format(body=lines))

    return Kernels(sys.executable, 20.0, tmp_path)


def finding(kernel="demo", bad=({"wrong": "true"},), severity=Severity.ERROR, request=None, rule="X001"):
    block = {"kernel": kernel, "request": request or {}, "bad_if_any": list(bad)}
    return Finding(rule, "n", severity, Verdict.FIRES, "s", "m", "", (), (), confirm=block)


def known(**workload):
    given = {"workload.framework": "vllm"} | {f"workload.{key}": value for key, value in workload.items()}
    extra = {"transformer-engine.version": "2.3.0"} if workload.get("framework") == "transformer_engine" else {}
    return FactResolver(Facts(Fact(key, value, "test") for key, value in (given | extra).items()))


def known_of(facts):
    return FactResolver(Facts(Fact(key, value, "test") for key, value in facts.items()))


def ask(bench, *findings, predictions=(), **workload):
    facts = known(**workload)
    return confirm(findings, facts, predictions, job_of(facts, [f"workload.{key}" for key in workload]), bench)


class TestFindings:
    def test_confirmed_keeps_its_severity_and_carries_what_was_seen(self, bench):
        bench.add("sdpa", "return {'wrong': request['head_dim_qk'] == 192, 'seen': request}")
        asked = finding("sdpa", request={"via": "frontend", "seq_len_q": "2048"})
        (settled,) = ask(bench, asked, head_dim_qk=192).findings
        assert settled.severity == "error"
        assert settled.confirmation.verdict == "confirmed"
        assert settled.confirmation.observed["seen"] == {"head_dim_qk": 192, "via": "frontend", "seq_len_q": 2048}

    def test_refuted_stays_as_a_note_behind_the_others(self, bench):
        bench.add("demo", "return {'wrong': False}")
        plain = Finding("X002", "n", Severity.WARNING, Verdict.FIRES, "s", "m", "", (), ())
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

    def test_equal_questions_are_checked_once(self, bench, tmp_path):
        log = tmp_path / "log"
        bench.add("demo", f"open({str(log)!r}, 'a').write('x')\nreturn {{'wrong': True}}")
        ask(bench, finding(rule="X001"), finding(rule="X002"))
        assert log.read_text() == "x"

    @pytest.mark.parametrize("name", ["nowhere", "protocol", "../etc/passwd", "None"])
    def test_a_rule_that_names_no_kernel_is_inconclusive(self, bench, name):
        (settled,) = ask(bench, finding(kernel=name)).findings
        assert settled.confirmation.verdict == "inconclusive"
        assert settled.confirmation.reason == f"there is no kernel `{name}`"

    def test_an_interpreter_that_does_not_start_is_inconclusive(self, bench):
        bench.add("demo", "return {}")
        gone = KernelRunner("/nonexistent/python", 5.0, bench.kernels)
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
        assert (found.rule, found.severity, found.verdict) == ("UNPREDICTED", "error", "unpredicted")
        assert found.confirmation.verdict == "unpredicted"
        assert found.message == "the result is wrong: dq is off by 3.7 (bound 0.009)"
        assert found.confirmation.kernel == "sdpa"

    def test_what_no_rule_foresaw_comes_with_a_script(self, bench):
        bench.add("sdpa", "raise RuntimeError('boom')")
        (found,) = ask(bench, framework="torch_sdpa", head_dim_qk=128, num_heads=8).findings
        head, told, *script = found.reproduction.splitlines()
        assert head == "# attn-doctor, kernel sdpa: RuntimeError: boom"
        assert told.startswith("# run on its own here, it ")
        compile("\n".join(script), "script", "exec")
        assert script[0] == "import torch" and any("torch.randn(2, 512, 8, 128, **opts)" in line for line in script)

    def test_a_broken_import_is_shown_by_the_import_alone(self, bench):
        bench.add("te_attention", "step('import nothing_of_that_name')\nimport nothing_of_that_name")
        (found,) = ask(bench, framework="transformer_engine", head_dim_qk=128).findings
        script = [line for line in found.reproduction.splitlines() if not line.startswith("#")]
        assert script == ["import torch", "import nothing_of_that_name"]
        assert "it showed the same" in found.reproduction

    @pytest.mark.parametrize(
        "observed",
        [
            "{'wrong': True, 'errors': 'garbage', 'bound': 3}",
            "{'wrong': True, 'errors': {'out': 5}, 'bound': {}, 'offenders': ['out']}",
            "{'wrong': False, 'ran': 'flash', 'errors': {'out': {'rel': 'nan'}}, 'seconds': 'x', 'peak_bytes': []}",
            "{'wrong': False, 'ran': [], 'gpu': 'none', 'shrunk': [1], 'backends': {'a': 1}}",
            "[1, 2]",
        ],
    )
    def test_garbage_that_a_kernel_observed_ends_nothing(self, bench, observed):
        bench.add("sdpa", f"return {observed}")
        (run,) = ask(bench, framework="torch_sdpa", head_dim_qk=128).runs
        assert run.verdict == ("failed" if "'wrong': True" in observed else "healthy")

    def test_time_and_memory_are_next_to_what_is_needed(self, bench):
        bench.add(
            "sdpa",
            "return {'wrong': False, 'ran': ['math'], 'seconds': 0.0123, 'peak_bytes': 640 << 20,"
            " 'times_flops': 41.3, 'times_bytes': 63.9}",
        )
        (run,) = ask(bench, framework="torch_sdpa", head_dim_qk=128).runs
        assert run.reason == "on math, 12.3 ms (41× a matrix product of its FLOPs), 640 MiB (64× its tensors)"

    def test_want_of_memory_says_nothing_of_the_job(self, bench):
        bench.add("sdpa", "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')")
        result = ask(bench, finding("sdpa", bad=({"outcome": ["failed"]},)), framework="torch_sdpa", head_dim_qk=128)
        assert [run.verdict for run in result.runs] == ["inconclusive"]
        assert [(item.rule, item.confirmation.verdict) for item in result.findings] == [("X001", "inconclusive")]

    @pytest.mark.parametrize(
        ("workload", "installed", "asked"),
        [
            ({"framework": "flash_attn"}, "flash-attn", "flash2"),
            ({"framework": "transformers", "attn_implementation": "flash_attention_2"}, "flash-attn", "flash2"),
            ({"framework": "transformers", "attn_implementation": "flash_attention_3"}, "flash-attn-3", "flash3"),
            ({"framework": "transformers", "attn_implementation": "flash_attention_3"}, "flash-attn", None),
            ({"framework": "transformers", "attn_implementation": "sdpa"}, "flash-attn", None),
            ({"framework": "vllm"}, "flash-attn", None),
        ],
    )
    def test_a_job_of_flash_attn_is_run_by_it(self, workload, installed, asked):
        facts = {f"{installed}.version": "2.8.3", **{f"workload.{key}": value for key, value in workload.items()}}
        of_job = known_of(facts)
        requests = dict(job_requests(of_job, {"head_dim_qk": 128}))
        assert requests.get("flash_attention", {}).get("backend") == asked

    @pytest.mark.parametrize(
        ("workload", "asked"),
        [
            ({"framework": "torch_sdpa"}, {"sdpa.cudnn", "cudnn.frontend"}),
            ({"framework": "transformers", "attn_implementation": "flash_attention_2"}, {"sdpa.cudnn", "flash_attn"}),
            ({"framework": "transformer_engine"}, None),
        ],
    )
    def test_a_job_of_torch_imports_no_library_that_it_does_not_use(self, bench, workload, asked):
        for name in ("sdpa", "strided_qkv", "te_attention"):
            bench.add(name, "return {'wrong': False, 'asked': request.get('backends')}")
        runs = ask(bench, head_dim_qk=128, qkv_interleaved=True, **workload).runs
        (views,) = [run for run in runs if run.kernel == "strided_qkv"]
        told = views.observed["asked"]
        assert told is asked is None or (asked <= set(told) and "transformer_engine" not in told)

    def test_a_busy_gpu_is_said_once(self, bench):
        seen = "{'wrong': False, 'gpu': {'busy': 'NVIDIA H200 is busy: 120.0 of 139.8 GiB are in use'}}"
        for name in ("sdpa", "strided_qkv"):
            bench.add(name, f"return {seen}")
        result = ask(bench, framework="torch_sdpa", head_dim_qk=128, qkv_interleaved=True)
        busy = "NVIDIA H200 is busy: 120.0 of 139.8 GiB are in use; times and memory say little"
        assert result.notes == (busy,)

    def test_time_by_stage_comes_along(self, bench):
        bench.add("sdpa", "step('import torch')\nstep('cuda context')\nstep('go')\nreturn {'wrong': False}")
        told = ask(bench, framework="torch_sdpa", head_dim_qk=128).spent
        assert set(told) == {"kernels.start", "kernels.import", "kernels.context", "kernels.case"}

    def test_a_foreseen_failure_is_not_a_second_finding(self, bench):
        bench.add("sdpa", "raise RuntimeError('boom')")
        expected = Finding("X002", "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), ())
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

    @pytest.mark.parametrize(
        ("ran", "selected", "says"),
        [
            (["cudnn"], "te.fused", None),
            (["flash"], "te.fused", "the kernels that ran are of flash: te.fused was predicted"),
            (["flash"], "te.flash3", None),
            (["cudnn"], "te.flash2", "the kernels that ran are of cudnn: te.flash2 was predicted"),
            ([], "te.fused", None),
            (["cudnn"], "te.unfused", None),
        ],
    )
    def test_the_kernels_names_are_held_against_the_choice(self, bench, ran, selected, says):
        bench.add("te_attention", f"return {{'selected': {selected!r}, 'ran': {ran!r}, 'wrong': False}}")
        predicted = Prediction("transformer_engine", selected, True, (Candidate(selected, "x", True, ()),))
        result = ask(bench, predictions=(predicted,), framework="transformer_engine", head_dim_qk=128)
        assert [item.message.partition(", but ")[2] for item in result.findings] == ([says] if says else [])

    def test_a_fall_back_to_math_is_a_finding_with_its_price(self, bench):
        bench.add("sdpa", "return {'wrong': False, 'ran': ['math'], 'seconds': 0.04, 'times_flops': 40.0}")
        predicted = Prediction("torch", "sdpa.cudnn", True, (Candidate("sdpa.cudnn", "cuDNN", True, ()),))
        (found,) = ask(bench, predictions=(predicted,), framework="torch_sdpa", head_dim_qk=128).findings
        took = "torch took sdpa.math, where sdpa.cudnn was predicted"
        assert found.message == f"{took}, 40 ms (40× a matrix product of its FLOPs)"
        assert found.severity == "warning" and "torch.profiler" in found.reproduction

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


def foretelling(rule, *, at_import=False):
    reason = Reason(rule, "m", True)
    candidate = Candidate("te.fused", "FusedAttention", True, ())
    more = {"import_error": reason} if at_import else {"fails_at_run": reason}
    return Prediction("transformer_engine", "te.fused", True, (candidate,), **more)


class TestForecasts:
    """A finding that names no kernel, but says that the library fails, is held against the job's own run."""

    FORECAST = Finding("X002", "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), ())

    def ask(self, bench, body, *, at_import=False, reassess=None):
        bench.add("te_attention", body)
        facts = known(framework="transformer_engine", head_dim_qk=128)
        job = {"framework": "transformer_engine", "head_dim_qk": 128}
        predictions = (foretelling("X002", at_import=at_import),)
        return confirm([self.FORECAST], facts, predictions, job, bench, reassess=reassess)

    @pytest.mark.parametrize(
        ("body", "at_import", "verdict", "severity"),
        [
            ("return {'selected': 'te.fused', 'wrong': False}", False, "refuted", "note"),
            ("return {'selected': 'te.fused', 'executed': False}", False, "inconclusive", "error"),
            ("return {'selected': 'te.fused', 'executed': False}", True, "refuted", "note"),
            ("raise Refused('no backend')", True, "refuted", "note"),
            ("raise Refused('no backend')", False, "confirmed", "error"),
            ("raise ImportError('undefined symbol')", True, "confirmed", "error"),
            ("raise Unavailable('no GPU')", False, "inconclusive", "error"),
        ],
    )
    def test_verdicts(self, bench, body, at_import, verdict, severity):
        result = self.ask(bench, body, at_import=at_import)
        found = next(item for item in result.findings if item.rule == "X002")
        assert (found.confirmation.verdict, found.severity) == (verdict, severity)
        reason = result.predictions[0].import_error or result.predictions[0].fails_at_run
        assert (reason is None) == (verdict == "refuted"), "what a run refuted is predicted no more"

    def test_refuted_and_yet_failing_is_unpredicted(self, bench):
        result = self.ask(bench, "raise Refused('no backend')", at_import=True)
        assert [(item.rule, item.severity) for item in result.findings] == [("UNPREDICTED", "error"), ("X002", "note")]

    SMALLER = "return {'selected': 'te.fused', 'wrong': False, 'shrunk': {'seq_len_q': [131072, 8192]}}"

    def test_a_healthy_run_of_a_smaller_job_refutes_nothing_that_only_befalls_the_big_one(self, bench):
        asked = []

        def silent(changes):
            asked.append(changes)
            return Judged(frozenset(), (foretelling("X002"),))

        (found,) = self.ask(bench, self.SMALLER, reassess=silent).findings
        assert asked == [{"seq_len_q": 8192}]
        assert (found.confirmation.verdict, found.severity) == ("inconclusive", "error")
        assert (
            found.confirmation.reason == "it was run smaller, with seq_len_q 8192 for 131072, where the rule is silent"
        )

    def test_it_refutes_what_befalls_the_small_one_too(self, bench):
        fires = lambda changes: Judged(frozenset({"X002"}), (foretelling("X002"),))  # noqa: E731
        (found,) = self.ask(bench, self.SMALLER, reassess=fires).findings
        assert (found.confirmation.verdict, found.severity) == ("refuted", "note")


class TestFixes:
    """What a run refuted needs no fix."""

    B = Path(__file__).parents[2] / "examples" / "incidents" / "b"

    @pytest.mark.parametrize("refuted", [False, True])
    def test_a_refuted_finding_has_none(self, monkeypatch, refuted):
        said = Confirmation(RunVerdict.REFUTED, "te_attention", {}, "ran", {}, "", 1.0)

        def ran(found, *rest):
            settled = tuple(item._replace(confirmation=said, severity=Severity.NOTE) for item in found)
            return (settled if refuted else found), (), (), (), {}

        monkeypatch.setattr("doctor.diagnosis.single._confirm", ran)
        report = diagnose(Request(facts=(str(self.B / "facts.yaml"),), workload=str(self.B / "workload.yaml")))
        assert bool(report.fixes) is not refuted
        assert ("pip install" in renderer("text")(report, Style())) is not refuted


class TestRanks:
    """A failure that is predicted of context parallelism is decided by the run over several ranks."""

    ONE_RANK = "return {'selected': 'te.fused', 'executed': False}"

    def ask(self, bench, body, *, block=None):
        bench.add("te_attention", self.ONE_RANK)
        bench.add("context_parallel", body)
        bench.add("demo", "return {'wrong': False}")
        given = {"workload.framework": "transformer_engine", "workload.head_dim_qk": 128, "workload.cp_size": 2,
                 "transformer-engine.version": "2.3.0", "gpu.count": 2}  # fmt: skip
        facts = known_of(given)
        job = job_of(facts, [key for key in given if key.startswith("workload.")])
        predicted = Finding("X002", "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), (), confirm=block)
        result = confirm([predicted], facts, (foretelling("X002"),), job, bench)
        return next(item for item in result.findings if item.rule == "X002")

    @pytest.mark.parametrize(
        ("body", "verdict"),
        [
            ("raise RuntimeError('Invalid combination of data type and sequence length')", "confirmed"),
            ("return {'wrong': True}", "confirmed"),
            ("return {'wrong': False}", "inconclusive"),
            ("raise Unavailable('context parallelism needs two GPUs')", "inconclusive"),
        ],
    )
    def test_verdicts(self, bench, body, verdict):
        found = self.ask(bench, body)
        assert (found.confirmation.verdict, found.severity) == (verdict, "error")

    def test_a_failure_over_ranks_counts_more_than_the_kernel_of_the_rule(self, bench):
        block = {"kernel": "demo", "bad_if_any": [{"wrong": "true"}]}
        found = self.ask(bench, "raise RuntimeError('boom')", block=block)
        assert (found.confirmation.kernel, found.confirmation.verdict) == ("context_parallel", "confirmed")
        assert self.ask(bench, "return {'wrong': False}", block=block).confirmation.kernel == "demo"

    def test_one_rank_of_torch_refutes_nothing_about_several(self, bench):
        bench.add("sdpa", "return {'wrong': False, 'ran': ['efficient']}")
        facts = known_of({"workload.framework": "torch_sdpa", "workload.head_dim_qk": 128, "workload.cp_size": 2})
        candidate = Candidate("sdpa.efficient", "x", True, ())
        predicted = Prediction("torch", "sdpa.efficient", True, (candidate,), fails_at_run=Reason("X002", "m", True))
        finding = Finding("X002", "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), ())
        job = {"framework": "torch_sdpa", "head_dim_qk": 128, "cp_size": 2}
        (found,) = confirm([finding], facts, (predicted,), job, bench).findings
        assert (found.confirmation.verdict, found.severity) == ("inconclusive", "error")


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
    assert parse_conditions(condition, observation).holds(Observations(observed)) is holds


def test_a_range_that_fits_no_number_is_refused():
    for wanted in ("~=1.2", ">x"):
        with pytest.raises(DoctorError, match="`a`"):
            parse_conditions({"a": wanted}, observation)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (KernelResult("ran", {"wrong": True}), "confirmed"),
        (KernelResult("ran", {"wrong": False}), "refuted"),
        (KernelResult("refused", {"wrong": False}), "refuted"),
        (KernelResult("unavailable", {"wrong": False}), "inconclusive"),
        (KernelResult("timeout"), "inconclusive"),
        (KernelResult("ran", {}), "inconclusive"),
    ],
)
def test_only_an_answer_refutes(answer, verdict):
    assert verdict_of([{"wrong": "true"}], answer) == verdict


def test_without_conditions_nothing_is_resolved():
    assert verdict_of([], KernelResult("ran", {})) == "inconclusive"


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
    plain = Finding("X001", "n", Severity.ERROR, Verdict.FIRES, "s", "m", "", (), (), confirm={"kernel": "demo"})
    assert ask(bench, plain).findings[0].confirmation.verdict == verdict


def test_requests_of_rules_get_the_types_of_the_vocabulary():
    given = {"head_dim_qk": "128", "mask": "causal", "window": ["8", "0"], "control": "true", "layouts": ["a", "2"]}
    assert typed(given) == {
        "head_dim_qk": 128, "mask": "causal", "window": [8, 0], "control": True, "layouts": ["a", 2],
    }  # fmt: skip
