#!/usr/bin/env python3
"""Run SGLang's own choice of attention backend for many server command lines, without a GPU.

The Python code of an unpacked wheel answers: `prepare_server_args`, its resolution, the constructor of `ModelRunner`
up to the first use of the GPU, then the function that creates the backend. The GPU's capability and torch's CUDA are
replaced, compiled modules and other missing requirements of the wheel are stubs. The interpreter needs torch (CPU) and
the transformers that the release pins.

    pip download --no-deps -d wheels sglang==0.5.23 && unzip -q wheels/sglang-0.5.23-*.whl -d sglang-0.5.23
    python scripts/oracles/ask_sglang.py sglang-0.5.23 --count 400 --seed 1 --output answers.jsonl

Each line holds facts, options and workload, in the form that `attn-doctor backends --batch` reads, and SGLang's answer:
`attention_backend`, `prefill`, `decode`, `error` with `error_at`, and `creator_refuses`.
"""

import abc
import argparse
import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import inspect
import io
import json
import os
import random
import re
import sys
import tempfile
import traceback
import types
from pathlib import Path

CAPABILITIES = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
BACKENDS = (
    "flashinfer", "triton", "torch_native", "fa3", "fa4", "flashmla", "cutlass_mla", "trtllm_mla", "trtllm_mha",
    "flex_attention", "aiter", "nsa", "dsa", "dual_chunk_flash_attn", "tokenspeed_mla", "FLASHINFER",
)  # fmt: skip
#: requirements whose module is not called like the distribution, and modules that others bring
MODULES = {
    "flashinfer-python": ("flashinfer",), "sgl-kernel": ("sgl_kernel",), "sglang-kernel": ("sgl_kernel",),
    "pillow": ("PIL",), "nvidia-ml-py": ("pynvml",), "pyzmq": ("zmq",), "gguf": ("gguf",),
    "nvidia-cutlass-dsl": ("cutlass",), "apache-tvm-ffi": ("tvm_ffi",), "cuda-python": ("cuda",),
    "quack-kernels": ("quack",), "flash-attn-4": ("flash_attn",), "opencv-python-headless": ("cv2",),
    "sglang-fa4": (), "grpcio": ("grpc",), "protobuf": ("google",), "ipython": ("IPython",), "pyyaml": ("yaml",),
    "mistral-common": ("mistral_common",), "py-spy": (), "av": ("av",), "soundfile": ("soundfile",),
    "opentelemetry-api": ("opentelemetry",), "smg-grpc-proto": ("smg_grpc_proto",),
}  # fmt: skip
ALWAYS = (
    "triton", "sgl_kernel", "gguf", "torchvision", "torchaudio", "deep_gemm", "IPython", "cuda", "cutlass", "flash_mla",
    "pynvml", "uvloop", "dill", "zmq", "multipart", "starlette", "uvicorn", "jsonschema", "referencing",
    "sentencepiece",
)  # fmt: skip
#: parts of torch that would take a stub of triton for the real one
BEFORE_STUBS = (
    "torch",
    "torch._dynamo",
    "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.select_algorithm",
    "torch._inductor.distributed_autotune",
    "torch.nn.attention.flex_attention",
)
REPLACED = ("flashinfer",)  # the records say whether it is installed, whatever this interpreter has


class Anything(abc.ABCMeta):
    """The type of stub classes: whatever is done with them gives another stub."""

    def __getattr__(cls, name):
        """A stub, for any name but Python's own."""
        if name.startswith("__"):
            raise AttributeError(name)
        return stub(name)

    def __getitem__(cls, item):
        """The class itself, as for `Generic[T]`."""
        return cls

    def __or__(cls, other):
        """The class itself, as in a union of types."""
        return cls

    __ror__ = __or__

    def __iter__(cls):
        """Nothing."""
        return iter(())

    def register(cls, *args, **kwargs):
        """A stub instead of what ABCMeta does."""
        return stub("register")

    def __instancecheck__(cls, instance):
        """Whether it is one; any function passes for a kernel of triton."""
        return cls.__name__ == "JITFunction" or type.__instancecheck__(cls, instance)

    def __call__(cls, *args, **kwargs):
        """The decorated function, where called as a decorator; else a stub."""
        if cls.__name__ == "get_current_target":  # of triton: the one answer that names torch's device module
            return types.SimpleNamespace(backend="cuda", arch=90, warp_size=32)
        if len(args) == 1 and not kwargs and callable(args[0]) and not isinstance(args[0], Anything):
            with contextlib.suppress(AttributeError, TypeError):
                args[0].fn = args[0]  # as a kernel that triton.jit has made
            return args[0]  # used as a decorator
        if cls.__dict__.get("_is_stub"):
            return stub(cls.__name__ + "_made")
        return type.__call__(cls, *args, **kwargs)


def _init_subclass(cls, **kwargs):
    cls._is_stub = False


def stub(name):
    """A new stub: class, function, decorator, constant, as the caller takes it."""
    body = {"_is_stub": True, "__init_subclass__": classmethod(_init_subclass), "__module__": "stubs"}
    body["__init__"] = lambda self, *args, **kwargs: None
    body["__get_pydantic_core_schema__"] = classmethod(lambda cls, *_: {"type": "any"})
    return Anything(name, (), body)


class StubModule(types.ModuleType):
    """A module in which every name is a stub."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__") and name != "__version__":
            raise AttributeError(name)
        made = "3.5.1" if name == "__version__" else stub(name)
        setattr(self, name, made)
        return made


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stub for each missing module of an allowed name, and hides those that are to be absent."""

    def __init__(self, allowed, hidden):
        self.allowed, self.hidden = set(allowed), set(hidden)

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a stub; ModuleNotFoundError for a hidden module."""
        root = name.partition(".")[0]
        if root in self.hidden:
            raise ModuleNotFoundError(f"No module named '{root}'", name=root)
        if root not in self.allowed:
            return None
        if root not in REPLACED and not isinstance(sys.modules.get(root), StubModule):
            others = [finder for finder in sys.meta_path if finder is not self]
            if root in sys.modules or any(finder.find_spec(root, None) is not None for finder in others):
                return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        """An empty stub module."""
        return StubModule(spec.name)

    def exec_module(self, module):
        """A stub has no code."""


def requirements(release):
    """Distribution -> pinned version, of the wheel's requirements; '' where nothing is pinned."""
    found = {}
    for path in Path(release).glob("sglang-*.dist-info/METADATA"):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            extra = re.search(r"extra == [\"']([\w-]+)", line)
            if line.startswith("Requires-Dist: ") and (extra is None or extra[1] in ("srt", "runtime-common")):
                matched = re.match(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*(?:\(?==([^,;)\s]+))?", line[15:])
                name = re.sub(r"[-_.]+", "-", matched[1]).lower()
                if found.get(name, "") == "":
                    found[name] = matched[2] or ""
    return found


def version_of(release):
    """The release that the folder holds."""
    return next(Path(release).glob("sglang-*.dist-info")).name.removeprefix("sglang-").removesuffix(".dist-info")


def pretend(release, flashinfer):
    """Put the wheel's requirements in place of what is installed here."""
    pins = requirements(release)
    names = set(ALWAYS)
    for name in pins:
        names.update(MODULES.get(name, (name.replace("-", "_"),)))
    names -= {"torch", "transformers", "numpy", "tokenizers", "aiter", "sglang", "sglang_router"}
    hidden = {"aiter", "vllm", "torch_npu", "mlx", "torch_musa", "habana_frameworks", "flash_attn_interface"} - names
    if flashinfer == "absent":
        names -= {"flashinfer"}
        hidden |= {"flashinfer"}
    import torch
    from transformers.models.auto import configuration_auto

    # a model type that the transformers here knows already is no error
    register = configuration_auto._LazyConfigMapping.register
    configuration_auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: register(
        self, key, value, True
    )
    torch.library.register_fake = lambda *args, **kwargs: lambda function: function  # of operators that are stubs
    torch._C._cpu._is_amx_tile_supported = lambda: False
    sys.meta_path.insert(0, StubFinder(names, hidden))
    # `find_spec` of a hidden module answers None, as it does for one that is not installed
    original_spec = importlib.util.find_spec

    def find_spec(name, package=None):
        return None if name.partition(".")[0] in hidden else original_spec(name, package)

    importlib.util.find_spec = find_spec
    real_version = importlib.metadata.version

    def version(name):
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if normal.startswith("flashinfer"):
            if flashinfer == "absent":
                raise importlib.metadata.PackageNotFoundError(name)
            return flashinfer
        try:
            return real_version(name)
        except importlib.metadata.PackageNotFoundError:
            if pins.get(normal):
                return pins[normal]
            raise

    importlib.metadata.version = version
    os.environ["PATH"] = f"{_fake_tools()}:{os.environ['PATH']}"
    sys.path.insert(0, str(release))


def pretend_gpu(sm, cuda):
    """Put a GPU of that capability and torch's CUDA in place of what is here, and forget what SGLang has cached."""
    import torch

    capability = tuple(int(part) for part in sm.split("."))
    properties = types.SimpleNamespace(
        major=capability[0], minor=capability[1], total_memory=80 << 30, multi_processor_count=132, name="NVIDIA GPU",
        warp_size=32, gcnArchName="", is_integrated=False, uuid="0", L2_cache_size=50 << 20,
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": capability,
        "get_device_name": "NVIDIA GPU", "get_device_properties": properties, "mem_get_info": (79 << 30, 80 << 30),
        "is_bf16_supported": capability[0] >= 8, "set_device": None, "synchronize": None, "empty_cache": None,
        "is_initialized": True, "memory_allocated": 0, "memory_reserved": 0, "init": None, "_lazy_init": None,
        "get_arch_list": ["sm_%d%d" % capability],
    }  # fmt: skip
    for name, value in answers.items():
        setattr(torch.cuda, name, lambda *args, _value=value, **kwargs: _value)
    torch.cuda.Stream = stub("Stream")
    torch.version.cuda, torch.version.hip = cuda, None
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "sglang":
            for value in list(vars(module).values()):
                with contextlib.suppress(Exception):
                    value.cache_clear()


def _fake_tools():
    """A folder with an `nvidia-smi` that reports one GPU's memory."""
    folder = Path(tempfile.mkdtemp(prefix="ask-sglang-tools-"))
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 81559\n")
    tool.chmod(0o755)
    return folder


def _plain(architecture, model_type, heads, kv_heads, head_dim, **more):
    """A config.json of a decoder with ordinary attention."""
    return {
        "architectures": [architecture], "model_type": model_type, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_size": heads * head_dim,
        "intermediate_size": 4096, "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6, "hidden_act": "silu", **more,
    }  # fmt: skip


def _latent(architecture, model_type, heads, **more):
    """A config.json of a decoder with latent attention, DeepSeek's dimensions."""
    made = _plain(architecture, model_type, heads, heads, 64, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
                  qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, n_group=1,
                  topk_group=1, n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=1024,
                  moe_layer_freq=1, routed_scaling_factor=1.0, scoring_func="sigmoid", topk_method="noaux_tc",
                  norm_topk_prob=True)  # fmt: skip
    del made["head_dim"]
    made.update(more)
    return made


_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"}
_WINDOWED = {"sliding_window": 4096}
_LINEAR = {
    "linear_num_value_heads": 32, "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "num_experts": 16, "num_experts_per_tok": 2,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "decoder_sparse_step": 1,
}  # fmt: skip
#: name -> config.json
MODELS = {
    "llama": _plain("LlamaForCausalLM", "llama", 32, 8, 128),
    "llama_dual": _plain("Qwen2ForCausalLM", "qwen2", 28, 4, 128, dual_chunk_attention_config={
        "chunk_size": 262144, "local_size": 8192, "original_max_position_embeddings": 262144}),
    "mistral": _plain("MistralForCausalLM", "mistral", 32, 8, 128, **_WINDOWED),
    "mixtral": _plain("MixtralForCausalLM", "mixtral", 32, 8, 128, num_local_experts=8, num_experts_per_tok=2),
    "qwen2": _plain("Qwen2ForCausalLM", "qwen2", 28, 4, 128, sliding_window=131072, use_sliding_window=False),
    "qwen3": _plain("Qwen3ForCausalLM", "qwen3", 32, 8, 128),
    "qwen3_moe": _plain("Qwen3MoeForCausalLM", "qwen3_moe", 32, 8, 128, num_experts=16, num_experts_per_tok=2,
                        moe_intermediate_size=512),
    "qwen2_vl": _plain("Qwen2VLForConditionalGeneration", "qwen2_vl", 28, 4, 128,
                       vision_config={"depth": 2, "embed_dim": 64, "hidden_size": 3584, "num_heads": 4},
                       rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]}),
    "phi3": _plain("Phi3ForCausalLM", "phi3", 32, 32, 96, sliding_window=2047, pad_token_id=0),
    "granite": _plain("GraniteForCausalLM", "granite", 32, 8, 128),
    "olmo2": _plain("Olmo2ForCausalLM", "olmo2", 32, 8, 128),
    "olmo3": _plain("Olmo3ForCausalLM", "olmo3", 32, 8, 128, **_WINDOWED),
    "gemma2": _plain("Gemma2ForCausalLM", "gemma2", 16, 8, 256, sliding_window=4096, attn_logit_softcapping=50.0,
                     final_logit_softcapping=30.0, query_pre_attn_scalar=256, hidden_activation="gelu_pytorch_tanh"),
    "gemma3_text": _plain("Gemma3ForCausalLM", "gemma3_text", 8, 4, 256, sliding_window=1024,
                          query_pre_attn_scalar=256, hidden_activation="gelu_pytorch_tanh"),
    "exaone4": _plain("Exaone4ForCausalLM", "exaone4", 32, 8, 128, sliding_window=4096, sliding_window_pattern="LLLG",
                      layer_types=["sliding_attention"] * 3 + ["full_attention"]),
    "glm4_moe": _plain("Glm4MoeForCausalLM", "glm4_moe", 96, 8, 128, n_routed_experts=16, num_experts_per_tok=2,
                       moe_intermediate_size=512, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1),
    "bert": _plain("BertModel", "bert", 12, 12, 64, max_position_embeddings=512, torch_dtype="float32",
                   type_vocab_size=2),
    "llama4": {
        "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "torch_dtype": "bfloat16",
        "text_config": _plain("Llama4ForCausalLM", "llama4_text", 40, 8, 128, num_local_experts=4,
                              attention_chunk_size=8192, interleave_moe_layer_step=1),
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    },
    "gpt_oss": _plain("GptOssForCausalLM", "gpt_oss", 64, 8, 64, sliding_window=128, num_local_experts=8,
                      num_experts_per_tok=2, quantization_config={"quant_method": "mxfp4"}),
    "gpt_oss_bf16": _plain("GptOssForCausalLM", "gpt_oss", 64, 8, 64, sliding_window=128, num_local_experts=8,
                           num_experts_per_tok=2),
    "mimo_v2": _plain("MiMoV2FlashForCausalLM", "mimo_v2_flash", 64, 4, 192, v_head_dim=128, sliding_window=128,
                      sliding_window_size=128, hybrid_layer_pattern=[0, 1, 1, 1], add_swa_attention_sink_bias=True,
                      swa_num_attention_heads=64, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128),
    "qwen3_next": _plain("Qwen3NextForCausalLM", "qwen3_next", 16, 2, 256, **_LINEAR),
    "deepseek_v2_lite": _latent("DeepseekV2ForCausalLM", "deepseek_v2", 16),
    "deepseek_v2_arch": _latent("DeepseekV2ForCausalLM", "deepseek_v3", 16),
    "deepseek_v3": _latent("DeepseekV3ForCausalLM", "deepseek_v3", 128, quantization_config=_FP8),
    "deepseek_v3_bf16": _latent("DeepseekV3ForCausalLM", "deepseek_v3", 128),
    "deepseek_v32": _latent("DeepseekV32ForCausalLM", "deepseek_v32", 128, index_topk=2048, index_n_heads=64,
                            index_head_dim=128, quantization_config=_FP8),
    "minicpm3": _plain("MiniCPM3ForCausalLM", "minicpm3", 40, 40, 96, q_lora_rank=768, kv_lora_rank=256,
                       qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, scale_emb=12, scale_depth=1.4,
                       dim_model_base=256),
}  # fmt: skip
#: what releases say of a model that the transformers next to them does not know
UNREADABLE = re.compile(r"does not recognize this architecture|trust_remote_code|but is of type")
#: models with attention sinks, of which their config says nothing
SINKS = ("gpt_oss", "gpt_oss_bf16", "mimo_v2")


def workload_of(name):
    """The workload words of a model of `MODELS`, without those of the options."""
    config = MODELS[name]
    text = config.get("text_config", config)
    latent = "kv_lora_rank" in text
    head_dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    window = text.get("sliding_window")
    return {
        "framework": "sglang", "model": name, "model_type": config["model_type"],
        "architecture": config["architectures"][0], "num_heads": text["num_attention_heads"],
        "num_kv_heads": text["num_key_value_heads"],
        "head_dim_qk": text["qk_nope_head_dim"] + text["qk_rope_head_dim"] if latent else head_dim,
        "head_dim_v": text.get("v_head_dim", head_dim), "mla": latent, "mla_sparse": "index_topk" in text,
        "sinks": name in SINKS, "sliding_window": window, "softcap": text.get("attn_logit_softcapping") or 0.0,
        "attention_type": "encoder_only" if config["model_type"] == "bert" else "decoder",
        "hybrid_linear_attention": "full_attention_interval" in text,
        "dual_chunk": "dual_chunk_attention_config" in text,
    }  # fmt: skip


class Stop(Exception):
    """Ends the constructor of ModelRunner before it uses the GPU."""


def folder_of(name, root):
    """A folder with the config.json of a model, made once."""
    folder = Path(root) / name
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(MODELS[name]))
    return str(folder)


def command_line(case, root):
    """The arguments of the server for one case."""
    options = [re.sub(r"^MODEL:(\w+)$", lambda found: folder_of(found[1], root), text) for text in case["options"]]
    return ["--model-path", folder_of(case["workload"]["model"], root), "--trust-remote-code", *options]


def line_of(problem):
    """The first line of an error, its class first."""
    text = str(problem).strip().splitlines()
    return f"{type(problem).__name__}: {text[0] if text else ''}"[:400]


def ask(case, root):
    """SGLang's own answer for one case."""
    answer = dict.fromkeys(
        ("attention_backend", "prefill", "decode", "page_size_in_effect", "kv_cache_dtype_in_effect", "error",
         "error_at", "creator_refuses")
    )  # fmt: skip
    step = "options"
    noise = io.StringIO()
    try:
        with contextlib.redirect_stderr(noise), contextlib.redirect_stdout(noise):
            import sglang.srt.server_args as server_args_module

            arguments = server_args_module.prepare_server_args(command_line(case, root))
            if hasattr(arguments, "resolve_once"):
                arguments.resolve_once()
            step = "launch"
            check_of_the_launcher(arguments)
            step = "model"
            runner, step = run_runner(arguments)
            prefill, decode = backends_of(arguments)
            answer.update(attention_backend=_read(arguments, "attention_backend"), prefill=prefill, decode=decode)
            answer.update(
                page_size_in_effect=_read(arguments, "page_size"),
                kv_cache_dtype_in_effect=_read(arguments, "kv_cache_dtype"),
            )
            if runner is not None:
                answer["creator_refuses"] = refusal(runner, arguments, {prefill, decode})
    except SystemExit:
        said = [line for line in noise.getvalue().splitlines() if "error:" in line]
        answer.update(error="SystemExit: " + (said[-1].partition("error: ")[2] if said else "")[:400], error_at=step)
    except Exception as problem:
        answer.update(error=line_of(problem), error_at=getattr(problem, "at_step", step))
    if answer["error"] is not None:
        answer.update(attention_backend=None, prefill=None, decode=None)
    return answer


def _read(arguments, name):
    """A resolved argument; from 0.5.20 what resolution declares is kept apart from the input."""
    try:
        from sglang.srt.arg_groups.overrides import resolved_view
    except ImportError:
        return getattr(arguments, name, None)
    return getattr(resolved_view(arguments), name)


def backends_of(arguments):
    """(prefill, decode) as the release derives them."""
    if hasattr(arguments, "get_attention_backends"):
        return tuple(arguments.get_attention_backends())
    base = _read(arguments, "attention_backend")
    prefill = getattr(arguments, "prefill_attention_backend", None)
    decode = getattr(arguments, "decode_attention_backend", None)
    try:
        from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view

        return tuple(attention_backends_of(resolved_view(arguments)))
    except ImportError:
        return (prefill or base, decode or base)


def check_of_the_launcher(arguments):
    """What the engine asserts between reading the options and starting the scheduler, as far as attention goes.

    Other assertions of the same function (disk, ports, packages) would speak of this machine.
    """
    try:
        arguments.check_server_args()
    except AssertionError as problem:
        if "ttention" in str(problem) or "Llama4" in str(problem):
            raise
    except Exception:
        return


def run_runner(arguments):
    """(a ModelRunner as far as it comes without a GPU, None where resolution is all; the step it came to)."""
    if hasattr(arguments, "resolve_once"):
        return stand_in(arguments), "creator"
    try:
        import sglang.srt.model_executor.model_runner as runner_module
    except Exception as problem:
        problem.at_step = "model"
        raise
    runner_class = runner_module.ModelRunner
    from sglang.srt.configs.model_config import ModelConfig

    config = model_config(ModelConfig, arguments)

    def stop(self, *args, **kwargs):
        raise Stop

    for name in ("init_torch_distributed", "initialize"):
        if hasattr(runner_class, name):
            setattr(runner_class, name, stop)
    given = {
        "model_config": config, "mem_fraction_static": 0.8, "gpu_id": 0, "tp_rank": 0, "tp_size": 1, "nccl_port": 1,
        "server_args": arguments, "pp_rank": 0, "pp_size": 1, "moe_ep_rank": 0, "moe_ep_size": 1, "dp_rank": None,
    }  # fmt: skip
    wanted = inspect.signature(runner_class.__init__).parameters
    if "ps" in wanted:  # from 0.5.16 on it is handed the resolved state, and adjusts nothing
        return stand_in(arguments), "creator"
    runner = runner_class.__new__(runner_class)
    try:
        runner.__init__(**{name: value for name, value in given.items() if name in wanted})
    except Stop:
        pass
    except Exception as problem:
        problem.at_step = "resolution"
        raise
    return runner, "creator"


def model_config(model_config_class, arguments):
    """The model config as the scheduler makes it."""
    if hasattr(model_config_class, "from_server_args"):
        return model_config_class.from_server_args(arguments)
    given = {
        "model_path": arguments.model_path, "trust_remote_code": arguments.trust_remote_code, "dtype": arguments.dtype,
        "revision": arguments.revision, "context_length": arguments.context_length,
        "model_override_args": arguments.json_model_override_args, "is_embedding": arguments.is_embedding,
        "quantization": arguments.quantization, "enable_multimodal": getattr(arguments, "enable_multimodal", None),
    }  # fmt: skip
    wanted = inspect.signature(model_config_class.__init__).parameters
    return model_config_class(**{name: value for name, value in given.items() if name in wanted})


def stand_in(arguments):
    """What a creator reads of a runner, for releases that resolve everything before one is made."""
    try:
        from sglang.srt.arg_groups.overrides import model_config_of, use_mla_backend
    except ImportError:
        config, latent = arguments.get_model_config(), arguments.use_mla_backend()
    else:
        config, latent = model_config_of(arguments), use_mla_backend(arguments)
    return types.SimpleNamespace(
        server_args=arguments, model_config=config, use_mla_backend=latent, is_draft_worker=False,
        sliding_window_size=None, device="cuda", is_hybrid_swa=False, draft_attention_backend=None,
        spec_algorithm=types.SimpleNamespace(is_eagle=lambda: False, is_none=lambda: True),
        hybrid_gdn_config=None, mambaish_config=None, linear_attn_model_spec=None, dtype=getattr(config, "dtype", None),
    )  # fmt: skip


def refusal(runner, arguments, backends):
    """The assertion with which the creator of a selected backend refuses it, its class first; None where it accepts.

    What a backend's own constructor needs of the GPU fails here and is no refusal: only errors that the creating
    function itself raises count.
    """
    attempts = [lambda name=name: create(runner, arguments, name) for name in sorted(backends)]
    for attempt in (lambda: create_pair(runner), *attempts, lambda: wrap(runner)):
        try:
            attempt()
        except (AssertionError, ValueError) as problem:
            last = traceback.extract_tb(problem.__traceback__)[-1]
            if Path(last.filename).name in ("attention_registry.py", "model_runner.py", "attention_backend_setup.py"):
                return line_of(problem)
        except (ImportError, NameError) as problem:
            if "flashinfer" in backends and importlib.util.find_spec("flashinfer") is None:
                return line_of(problem)  # the release has chosen what is not installed
        except Exception:
            continue
    return None


def create_pair(runner):
    """Call what the release creates the backends of both phases with; from 0.4.9.post5 it checks the pair."""
    maker = getattr(type(runner), "_get_attention_backend", None)
    if maker is not None and hasattr(type(runner), "_get_attention_backend_from_str"):
        maker(runner)


def wrap(runner):
    """Call what the release combines linear layers with the backend in; it refuses pairs of them."""
    from sglang.srt.layers.attention import attention_registry

    if isinstance(runner, types.SimpleNamespace):
        runner.prefill_attention_backend_str, runner.decode_attention_backend_str = backends_of(runner.server_args)
    attention_registry.attn_backend_wrapper(runner, types.SimpleNamespace())


def create(runner, arguments, name):
    """Call what the release creates the backend `name` with."""
    try:
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    except ImportError:
        ATTENTION_BACKENDS = None
    if not hasattr(runner, "sliding_window_size"):
        runner.sliding_window_size = None
    if ATTENTION_BACKENDS is not None:
        if name not in ATTENTION_BACKENDS:
            raise ValueError(f"Invalid attention backend: {name}")
        return ATTENTION_BACKENDS[name](runner)
    maker = getattr(type(runner), "_get_attention_backend_from_str", None)
    if maker is not None:
        return maker(runner, name)
    arguments.attention_backend = name
    return runner.init_attention_backend()


def draw(rng, sm, cuda, flashinfer, release):
    """One random case, leaning towards ordinary ones."""
    name = rng.choice(sorted(MODELS))
    words, options = workload_of(name), []

    def give(option, value):
        options.extend((option, str(value)))
        return value

    words["dtype"] = MODELS[name].get("torch_dtype", "bfloat16")
    if rng.random() < 0.1:
        words["dtype"] = give("--dtype", rng.choice(("float16", "bfloat16", "float32")))
    words["kv_cache_dtype"] = "auto"
    if rng.random() < 0.25:
        kinds = ("fp8_e4m3", "fp8_e5m2", "bf16", "bfloat16", "fp4_e2m1", "nvfp4", "fp8_e4m3", "fp8_e5m2")
        words["kv_cache_dtype"] = give("--kv-cache-dtype", rng.choice(kinds))
    words["page_size"] = give("--page-size", rng.choice((1, 16, 32, 64, 128))) if rng.random() < 0.2 else None
    for word, option, odds in (
        ("attention_backend_option", "--attention-backend", 0.4),
        ("prefill_attention_backend_option", "--prefill-attention-backend", 0.1),
        ("decode_attention_backend_option", "--decode-attention-backend", 0.1),
    ):
        words[word] = give(option, rng.choice(BACKENDS)) if rng.random() < odds else None
    words["speculative_algorithm"] = words["speculative_eagle_topk"] = None
    if rng.random() < 0.12:
        words["speculative_algorithm"] = give("--speculative-algorithm", rng.choice(("EAGLE", "EAGLE3")))
        give("--speculative-draft-model-path", f"MODEL:{name}")
        give("--speculative-num-steps", 3)
        words["speculative_eagle_topk"] = give("--speculative-eagle-topk", rng.choice((1, 4)))
        give("--speculative-num-draft-tokens", 4)
    words["deterministic_inference"] = rng.random() < 0.06
    if words["deterministic_inference"]:
        options.append("--enable-deterministic-inference")
    words["disable_mla"] = words["mla"] and rng.random() < 0.05
    if words["disable_mla"]:
        options.append("--disable-mla")
    facts = {
        "sglang.version": version_of(release), "gpu.sm": sm, "torch.cuda": cuda, "flashinfer-python.version": flashinfer
    }  # fmt: skip
    return {"facts": facts, "options": options, "workload": words}


def random_cases(release, count, rng):
    """Random cases."""
    pinned = requirements(release).get("flashinfer-python") or "0.1.6"
    made = []
    while len(made) < count:
        cuda = rng.choice(("12.1", "12.4", "12.6", "12.8", "12.9", "13.0"))
        flashinfer = "absent" if rng.random() < 0.12 else pinned
        made.append(draw(rng, rng.choice(CAPABILITIES), cuda, flashinfer, release))
    for number, case in enumerate(made):
        case["id"] = f"sglang-{version_of(release)}-{number:04d}"
    return made


def answer_group(cases, release, root, output):
    """Answer the cases of one environment, each in a process forked behind the imports."""
    facts = cases[0]["facts"]
    pretend(release, facts["flashinfer-python.version"])
    pretend_gpu(facts["gpu.sm"], facts["torch.cuda"])
    noise = io.StringIO()
    for name in ("sglang.srt.server_args", "sglang.srt.model_executor.model_runner"):
        try:
            with contextlib.redirect_stderr(noise), contextlib.redirect_stdout(noise):
                importlib.import_module(name)
        except Exception as problem:
            print(f"{facts}: {name}: {line_of(problem)}", file=sys.stderr)
    variables = dict(os.environ)
    for name in ("llama", "deepseek_v3"):  # imports what is imported late, once for all cases
        ask({"facts": facts, "options": [], "workload": {"model": name}}, root)
    os.environ.clear()
    os.environ.update(variables)
    for case in cases:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with contextlib.suppress(BaseException), os.fdopen(writing, "w") as pipe:
                pretend_gpu(case["facts"]["gpu.sm"], case["facts"]["torch.cuda"])
                pipe.write(json.dumps(ask(case, root)))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        expected = json.loads(text) if text else {"error": "the process ended", "error_at": "harness"}
        if UNREADABLE.search(expected["error"] or "") or expected["error_at"] == "harness":
            continue  # an answer about this interpreter or about the model's config, not about attention
        output.write(json.dumps({**case, "expected": expected}) + "\n")
        output.flush()


def groups_of(cases):
    """Cases that share what is imported."""
    found = {}
    for case in cases:
        facts = case["facts"]
        found.setdefault(facts["flashinfer-python.version"], []).append(case)
    return list(found.values())


def main():
    """Answer the cases of a file or random ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("release", type=Path, help="folder of the unpacked wheel")
    parser.add_argument("--packages", type=Path, action="append", default=[], help="folder of further packages")
    parser.add_argument("--cases", type=Path, help="JSON Lines; those of this release are answered")
    parser.add_argument("--count", type=int, default=400, help="random cases, without --cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path("answers.jsonl"))
    options = parser.parse_args()
    sys.path[:0] = [str(path) for path in options.packages]
    version = version_of(options.release)
    if options.cases:
        lines = [json.loads(line) for line in options.cases.read_text(encoding="utf-8").splitlines()]
        cases = [case for case in lines if case["facts"]["sglang.version"] == version]
    else:
        cases = random_cases(options.release, options.count, random.Random(f"{options.seed} {version}"))
    for name in BEFORE_STUBS:  # once, before the forks
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="ask-sglang-") as root, options.output.open("w") as output:
        for group in groups_of(cases):
            child = os.fork()
            if child == 0:
                answer_group(group, options.release, root, output)
                os._exit(0)
            os.waitpid(child, 0)
    print(f"{version}: {len(cases)} cases", file=sys.stderr)


if __name__ == "__main__":
    main()
