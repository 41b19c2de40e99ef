"""The two incidents, rewritten: context-parallel kwargs without `softcap`, and a method turned into a function."""

from __future__ import annotations

import textwrap

from doctor.drift.findings import Reach, Severity
from doctor.drift.pipeline import DriftRequest, analyze
from tests.helpers.rulebook import builtin_stack

#: A backward function that takes a soft cap from one release on, without a default.
KERNELS = {
    "flash_attn/__init__.py": '__version__ = "{version}"\n',
    "flash_attn/flash_attn_interface.py": """
        def varlen_forward(q, k, v, window, softcap=0.0, block=None):
            return q, k
        def varlen_backward(dout, q, k, v, softmax_scale, causal, window, {softcap}rng_state=None):
            return q, k, v
    """,
}

#: Keyword dicts filled under version flags; the one for backward forgets the soft cap.
RING = """
    from importlib.metadata import version as pkg_version
    from packaging.version import Version
    import torch

    _installed = Version(pkg_version("flash-attn"))
    _maximum = Version("2.6.3")
    _at_least_2_3 = False
    backward_fn = None
    if _installed <= _maximum:
        from flash_attn.flash_attn_interface import varlen_backward as backward_fn
        _at_least_2_3 = _installed >= Version("2.3")

    class RingAttention(torch.autograd.Function):
        @staticmethod
        def backward(ctx, dout):
            if not ctx.fused:
                options = {"softmax_scale": ctx.scale}
                if _at_least_2_3:
                    options["window"] = (-1, 0)
            for step in range(ctx.cp_size):
                if ctx.fused:
                    ctx.other(dout)
                else:
                    options["rng_state"] = ctx.states[step]
                    backward_fn(dout, ctx.q, ctx.k, ctx.v, causal=True, **options)
"""


def ring(site, version, softcap):
    site.install("flash-attn", version, {
        name: text.replace("{version}", version).replace("{softcap}", softcap) for name, text in KERNELS.items()
    })  # fmt: skip
    site.install("transformer-engine", "1.13.0", {
        "transformer_engine/__init__.py": "", "transformer_engine/ring.py": RING,
    })  # fmt: skip
    return site


def test_incident_a_softcap_is_missing_in_the_backward_call(site):
    (finding,) = ring(site, "2.6.3", "softcap, ").definite("transformer_engine")
    assert (finding.kind.name, finding.name) == ("MISSING_ARGUMENT", "softcap")
    assert finding.scope == "RingAttention.backward" and finding.site.line == 26
    assert finding.reach is Reach.CONTEXT_PARALLEL


def test_incident_a_release_before_and_release_outside_the_window_are_right(site, tmp_path):
    assert ring(site, "2.5.8", "").definite("transformer_engine") == []
    later = type(site)(tmp_path / "later")
    later.root.mkdir()
    assert ring(later, "2.8.3", "softcap, ").definite("transformer_engine") == []


def test_incident_a_severity_follows_the_workload(site):
    root = ring(site, "2.6.3", "softcap, ").root
    severities = [
        analyze(DriftRequest((root,), builtin_stack(), context_parallel=answer)).findings[0].severity
        for answer in (True, False, None)
    ]
    assert severities == [Severity.ERROR, Severity.NOTE, Severity.WARNING]


MODELS = {
    "transformers/__init__.py": '__version__ = "{version}"\n',
    "transformers/models/__init__.py": "",
    "transformers/models/qwen2/__init__.py": "",
    "transformers/models/qwen2/modeling_qwen2.py": """
        from torch import nn
        class Qwen2Rotary(nn.Module):
            def __init__(self, dim):
                super().__init__()
            def forward(self, x, {seq_len}):
                return x, x
        class Qwen2Attention(nn.Module):
            def __init__(self, config, layer_idx=None):
                super().__init__()
                self.q_proj = nn.Linear(config.size, config.size)
                self.num_heads = config.heads
                self.rotary = Qwen2Rotary(config.size)
        class Qwen2FlashAttention2(Qwen2Attention):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
            {method}
    """,
}
METHOD = "def _flash_attention_forward(self, q, k, v): return q"

DISPATCH = """
    import types
    import transformers
    from mmengine import digit_version
    from mmengine.config.lazy import LazyObject

    OLD = digit_version(transformers.__version__) < digit_version("4.38")
    TABLE = dict(Qwen2FlashAttention2=LazyObject("xtuner.dispatch.qwen2", "qwen2_forward"))
    OLD_TABLE = dict(Qwen2FlashAttention2=LazyObject("xtuner.dispatch.qwen2", "qwen2_forward_old"))

    def dispatch(model):
        for module in model.modules():
            name = type(module).__name__
            if OLD and name in OLD_TABLE:
                module.forward = types.MethodType(OLD_TABLE[name].build(), module)
            elif name in TABLE:
                module.forward = types.MethodType(TABLE[name].build(), module)
"""
FORWARDS = """
    from transformers.models.qwen2 import modeling_qwen2

    def qwen2_forward(self, hidden, positions=None):
        q = self.q_proj(hidden).view(self.num_heads)
        cos, sin = self.rotary(q, seq_len=3)
        return self._flash_attention_forward(q, q, q)

    def qwen2_forward_old(self, hidden):
        return self.never_there(hidden)
"""


def patched(site, version, method=METHOD, seq_len="seq_len=None"):
    site.install("transformers", version, {
        name: textwrap.dedent(text).replace("{version}", version).replace("{method}", method or "pass")
        .replace("{seq_len}", seq_len) for name, text in MODELS.items()
    })  # fmt: skip
    site.install("xtuner", "0.1.23", {
        "xtuner/__init__.py": "", "xtuner/dispatch/__init__.py": DISPATCH, "xtuner/dispatch/qwen2.py": FORWARDS,
    })  # fmt: skip
    return site


def test_incident_c_the_method_is_gone(site):
    (finding,) = patched(site, "4.44.2", method="").definite("xtuner")
    assert (finding.kind.name, finding.name) == ("MISSING_ATTRIBUTE", "_flash_attention_forward")
    assert finding.symbol.endswith("Qwen2FlashAttention2._flash_attention_forward")
    assert str(finding.site) == "xtuner/dispatch/qwen2.py:7"


def test_incident_c_the_embedding_takes_no_seq_len(site):
    (finding,) = patched(site, "4.45.0", seq_len="positions=None").definite("xtuner")
    assert (finding.kind.name, finding.name, finding.site.line) == ("UNEXPECTED_KEYWORD", "seq_len", 6)


def test_incident_c_the_release_that_has_both_is_right(site):
    assert patched(site, "4.42.4").definite("xtuner") == []


def test_incident_c_the_table_for_old_releases_is_read_where_it_is_used(site):
    (finding,) = patched(site, "4.37.2").definite("xtuner")
    assert finding.name == "never_there"


def test_incident_c_a_class_that_the_caller_replaces_is_not_checked(site):
    patched(site, "4.45.0", seq_len="positions=None")
    dispatch = site.root / "xtuner" / "dispatch" / "__init__.py"
    dispatch.write_text(
        dispatch.read_text() + 'REPLACED = dict(Qwen2Rotary=LazyObject("xtuner.dispatch.rotary", "Rotary"))\n'
    )
    (site.root / "xtuner" / "dispatch" / "rotary.py").write_text("class Rotary:\n    pass\n")
    assert site.definite("xtuner") == []
