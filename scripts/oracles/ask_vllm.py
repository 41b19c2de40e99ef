#!/usr/bin/env python3
"""Run the attention-backend selection of an unpacked vLLM release without a GPU and record its answers.

The Python code of the release decides, unchanged: engine choice, configuration hooks, selector, construction of the
layer's implementation. Only its surroundings are replaced: the GPU's capability, packages that are present or absent,
and compiled modules (present as the wheel's RECORD lists them, less those that a case names as missing).

    python scripts/oracles/ask_vllm.py --sources vllm-0.33.0/ --random 300 --seed 1 --output answers.jsonl
    python scripts/oracles/ask_vllm.py --sources vllm-0.33.0/ --cases cases.jsonl --output answers.jsonl

`--sources` is a folder with `vllm/` and `vllm-VERSION.dist-info/`, as `unzip` leaves them. The interpreter needs torch
and the pure Python requirements of the release. A line of the output holds facts, machine, workload and `expected`.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import random
import re
import shutil
import socket
import sys
import traceback
import types
from collections import Counter
from pathlib import Path
from typing import ClassVar

#: distribution -> the module that it brings
OPTIONAL = {
    "flashinfer-python": "flashinfer", "flashinfer-cubin": "flashinfer_cubin", "tokenspeed-mla": "tokenspeed_mla",
    "xformers": "xformers", "vllm-flash-attn": "vllm_flash_attn",
}  # fmt: skip
#: requirements whose module has another name, and what they bring themselves
MODULES = {
    "apache-tvm-ffi": ("tvm_ffi",),
    "fastapi": ("fastapi", "starlette", "uvicorn"), "grpcio": ("grpc",), "py-cpuinfo": ("cpuinfo",),
    "lm-format-enforcer": ("lmformatenforcer",),
    "nvidia-cutlass-dsl": ("cutlass",), "nvidia-ml-py": (), "opencv-python-headless": ("cv2",), "pillow": ("PIL",),
    "opentelemetry-api": ("opentelemetry",), "protobuf": ("google",), "python-json-logger": ("pythonjsonlogger",),
    "pyyaml": ("yaml",), "pyzmq": ("zmq",), "quack-kernels": ("quack",), "scikit-learn": ("sklearn",),
}  # fmt: skip
#: not required by name, but imported unconditionally by some release
ALSO = (
    "openai_harmony",
    "outlines",
    "uvloop",
    "watchfiles",
    "aiohttp",
    "filelock",
    "cachetools",
    "httpx",
    "six",
    "urllib3",
    "zmq",
    "py-cpuinfo",
    "apache-tvm-ffi",
)
CAPABILITIES = ("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1")
FRESH = ("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_FLASH_ATTN_VERSION", "VLLM_USE_TRTLLM_ATTENTION")


class Anything(type):
    """A class every attribute of which is such a class again, in place of code that needs a GPU to be imported."""

    def __new__(mcs, name, bases, members, **options):
        """Make a class; options, as `msgspec.Struct` takes them, say nothing here."""
        return super().__new__(mcs, name, bases, members)

    def __init__(cls, name, bases, members, **options):
        super().__init__(name, bases, members)

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return made(name)

    def __call__(cls, *args, **kwargs):
        """Return an instance, or the function that is decorated."""
        if len(args) == 1 and not kwargs and inspect.isfunction(args[0]):
            return args[0]  # used as a decorator
        return type.__call__(cls) if "_is_stub" in cls.__dict__ else type.__call__(cls, *args, **kwargs)

    def __getitem__(cls, item):
        return cls

    def __iter__(cls):
        return iter(())


def made(name):
    """A class that accepts any use."""
    members = {
        "_is_stub": True,
        "__init__": lambda self, *args, **kwargs: None,
        "__call__": lambda self, *args, **kwargs: args[0] if args and callable(args[0]) else self,
        "__getattr__": lambda self, key: made(key),
        "__get_pydantic_core_schema__": classmethod(lambda cls, *_: {"type": "any"}),
        **dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__"), lambda self, other: False),
    }
    return Anything(name, (), members)


class StubModule(types.ModuleType):
    """A module that has every name."""

    __version__ = "3.5.1"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = made(name)
        setattr(self, name, value)
        return value


class Surroundings(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The only finder: stubs what is present without its compiled code, finds nothing that is absent."""

    def __init__(self, stubbed, refused, given, finders):
        self.stubbed, self.refused, self.given, self.finders = set(stubbed), set(refused), given, finders

    def find_distributions(self, *args, **kwargs):
        """Yield what the other finders know of installed distributions."""
        for finder in self.finders:
            if hasattr(finder, "find_distributions"):
                yield from finder.find_distributions(*args, **kwargs)

    def find_spec(self, name, path=None, target=None):
        """Return the spec of a module: given, absent, stubbed or real, in this order."""
        if name in self.given:
            return importlib.machinery.ModuleSpec(name, self)
        top = name.partition(".")[0]
        if name in self.refused or top in self.refused:
            return None
        if name in self.stubbed or top in self.stubbed:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return next((spec for finder in self.finders if (spec := finder.find_spec(name, path, target))), None)

    def create_module(self, spec):
        """Return the given module or a stub."""
        if spec.name in self.given:
            return self.given[spec.name]
        module = StubModule(spec.name)
        module.__path__ = []
        module.__file__ = f"<{spec.name}>"
        if spec.name == "flashinfer.mla" and _release_of_flashinfer() >= (0, 6, 18):
            module.BatchMLAPagedAttentionWrapper = type("BatchMLAPagedAttentionWrapper", (), {"run": _run_of_0_6_18})
        return module

    def exec_module(self, module):
        """Do nothing: the module is complete."""


def _release_of_flashinfer():
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", Machine.version("flashinfer-python"))
    return tuple(map(int, found.groups())) if found else (0, 0, 0)


def _run_of_0_6_18(self, *args, ckv_scale_arr=None):
    """Replace a method whose signature vLLM looks at."""


class Lenient(types.SimpleNamespace):
    """A substitute for a configuration object: what a case does not say is None."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Layers(list):
    """What the release knows of each layer's architecture."""

    def __init__(self, dims):
        super().__init__(types.SimpleNamespace(head_size=dim) for dim in dims)
        self.total_num_hidden_layers = len(dims)


def compiled_modules(sources):
    """Names of the extension modules that the wheel ships."""
    (record,) = list(sources.glob("vllm-*.dist-info/RECORD"))
    names = (line.split(",")[0] for line in record.read_text().splitlines())
    return {re.sub(r"(\.abi3|\.cpython-[^.]+)?\.so$", "", name).replace("/", ".") for name in names if ".so" in name}


def release_of(sources):
    """The version in the name of the dist-info folder."""
    (folder,) = list(sources.glob("vllm-*.dist-info"))
    return folder.name.removeprefix("vllm-").removesuffix(".dist-info").split("+")[0]


def pinned(sources):
    """The versions that the wheel requires of optional packages; those it does not name are left out."""
    text = next(iter(sources.glob("vllm-*.dist-info/METADATA"))).read_text()
    found = re.findall(r"^Requires-Dist: ([A-Za-z0-9_.-]+)(?:\[[^]]*\])? ?\(?==([^;,)\s]+)", text, re.M)
    return {name.lower().replace("_", "-"): version for name, version in found}


# -- surroundings of one process ---------------------------------------------------------------------------------------


class Machine:
    """The machine that this process pretends to be; a fork becomes another one before it imports a backend."""

    facts: ClassVar[dict] = {}
    machine: ClassVar[dict] = {}

    @classmethod
    def capability(cls):
        """(major, minor) of the GPU."""
        return tuple(map(int, cls.facts["gpu.sm"].split(".")))

    @classmethod
    def version(cls, distribution):
        """The version of an optional distribution, or `absent`."""
        return cls.facts.get(f"{distribution}.version", "absent")


def become(finder, facts, machine):
    """Turn this process into the machine of a case."""
    import torch

    Machine.facts, Machine.machine = facts, machine
    torch.version.cuda = facts.get("torch.cuda", "12.8")
    missing = set(machine.get("compiled_modules_missing") or ())
    absent = {module for name, module in OPTIONAL.items() if Machine.version(name) == "absent"}
    finder.refused = finder.never | missing | absent
    for name in [name for name in sys.modules if name in missing or name.partition(".")[0] in absent]:
        del sys.modules[name]
    clear_caches()


def prepare(sources):
    """Replace GPU, packages and compiled modules before anything of vLLM is imported; return the finder of modules."""
    import torch

    remember_caches()
    stubbed = compiled_modules(sources) | set(OPTIONAL.values())
    if (sources / "vllm" / "vllm_flash_attn").exists():
        stubbed.discard("vllm.vllm_flash_attn")
    never = {"flash_attn", "flash_attn_interface", "deep_gemm", "deep_ep", "aiter", "amdsmi", "habana_frameworks"}
    never |= {"torch_xla", "libtpu", "intel_extension_for_pytorch", "pplx_kernels", "ray", "runai_model_streamer"}
    metadata = next(iter(sources.glob("vllm-*.dist-info/METADATA"))).read_text()
    required = re.findall(r"^Requires-Dist: ([A-Za-z0-9_.-]+)", metadata, re.M)
    wanted = {"nvidia-cutlass-dsl", "quack-kernels", "opencv-python-headless", "pillow", "pyzmq", *ALSO, *required}
    for name in (re.sub(r"[-_.]+", "-", name).lower() for name in wanted):
        for module in MODULES.get(name, (name.replace("-", "_"),)):
            if module not in never and importlib.util.find_spec(module) is None:
                stubbed.add(module)
    if tuple(map(int, release_of(sources).split(".")[:2])) < (0, 9):
        stubbed.add("triton")  # later releases have a complete substitute of their own
    finder = Surroundings(stubbed, never, nvml(), list(sys.meta_path))
    finder.never = never
    sys.meta_path[:] = [finder]
    sys.path.insert(0, str(sources))
    known = importlib.metadata.version

    def version(name):
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if normal not in OPTIONAL:
            return known(name)
        if Machine.version(normal) == "absent":
            raise importlib.metadata.PackageNotFoundError(name)
        return Machine.version(normal)

    importlib.metadata.version = version
    patch_cuda(torch)
    torch.classes = StubModule("torch.classes")  # of compiled modules
    torch._library.register_fake_class = lambda name: lambda made: made
    register_twice()
    found = shutil.which

    def which(command, *args, **kwargs):
        tool = Path(str(command)).name
        if tool in ("nvcc", "ninja"):
            return f"/usr/local/cuda/bin/{tool}" if Machine.machine.get("nvcc", True) else None
        return found(command, *args, **kwargs)

    shutil.which = which
    patch_network()
    for key in list(os.environ):
        if key.startswith("VLLM_"):
            del os.environ[key]
    os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.pop("CUDA_HOME", None)
    os.environ.pop("CUDA_PATH", None)
    logging.disable(logging.CRITICAL)
    return finder


def patch_cuda(torch):
    """torch.cuda answers one GPU; what is allocated on it is allocated on the CPU."""

    def properties(device=None):
        major, minor = Machine.capability()
        return types.SimpleNamespace(
            name="GPU", major=major, minor=minor, total_memory=80 << 30, multi_processor_count=132,
            max_threads_per_multi_processor=2048, is_integrated=False, shared_memory_per_block_optin=232448,
            warp_size=32,
        )  # fmt: skip

    torch.cuda.is_available = lambda: True
    torch.cuda._is_compiled = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: Machine.capability()
    torch.cuda.get_device_properties = properties
    torch.cuda.get_device_name = lambda device=None: "GPU"
    torch.cuda._device_count_nvml = lambda: 1
    torch.cuda.mem_get_info = lambda device=None: (70 << 30, 80 << 30)
    torch.cuda.Stream = made("Stream")
    torch.cuda.Event = made("Event")
    for name in ("empty", "zeros", "ones", "full", "tensor", "arange"):
        real = getattr(torch, name)

        def on_cpu(*args, _real=real, **kwargs):
            if "cuda" in str(kwargs.get("device")):
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            return _real(*args, **kwargs)

        setattr(torch, name, on_cpu)


def register_twice():
    """Let a release register a model type that the transformers here knows already."""
    from transformers.models.auto import configuration_auto

    real = configuration_auto._LazyConfigMapping.register
    configuration_auto._LazyConfigMapping.register = lambda self, key, value, exist_ok=False: real(
        self, key, value, True
    )


def nvml():
    """NVML that answers one GPU, for both copies of pynvml that releases use."""
    answers = {
        "nvmlInit": lambda *a, **k: None, "nvmlShutdown": lambda *a, **k: None, "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: 0, "nvmlDeviceGetName": lambda handle: "GPU",
        "nvmlDeviceGetCudaComputeCapability": lambda handle: Machine.capability(),
        "nvmlDeviceGetUUID": lambda handle: "GPU-0",
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 << 30),
        "nvmlSystemGetDriverVersion": lambda: "580.0",
    }  # fmt: skip
    module = StubModule("pynvml")
    module.__file__ = "pynvml/__init__.py"
    module.NVMLError = type("NVMLError", (Exception,), {})
    for key, value in answers.items():
        setattr(module, key, value)
    sys.modules.pop("pynvml", None)
    return {"pynvml": module, "vllm.third_party.pynvml": module}


def patch_network():
    """Only NVIDIA's server of kernels is ever called by the selection; it answers or it does not."""
    import requests

    def answer(*args, **kwargs):
        if not Machine.machine.get("nvidia_artifactory_reachable", True):
            raise requests.exceptions.ConnectionError("unreachable")
        return types.SimpleNamespace(status_code=200, ok=True, raise_for_status=lambda: None)

    for name in ("get", "head", "request"):
        setattr(requests, name, answer)
        setattr(requests.Session, name, lambda self, *args, **kwargs: answer())

    def refuse(*args, **kwargs):
        raise OSError("no network in this process")

    socket.create_connection = refuse


CACHES = []


def remember_caches():
    """Keep every cache that is made from here on, so that it can be cleared."""
    real = functools.lru_cache

    def lru_cache(maxsize=128, typed=False):
        made = real(maxsize, typed)
        if not callable(maxsize):
            return lambda function: _kept(made(function))
        return _kept(made)

    functools.lru_cache = lru_cache
    functools.cache = lru_cache(None)


def _kept(wrapper):
    CACHES.append(wrapper)
    return wrapper


def clear_caches():
    """Forget what the release has remembered of the case before."""
    for wrapper in CACHES:
        if (wrapper.__module__ or "").startswith("vllm"):
            wrapper.cache_clear()


# -- one case ----------------------------------------------------------------------------------------------------------


def ask(release, facts, workload):
    """The release's answer for one workload."""
    import torch

    for name in [name for name in os.environ if name.startswith("VLLM_")]:
        if name not in ("VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
            del os.environ[name]
    for key, value in facts.items():
        if key.startswith("env.") and value != "absent":
            os.environ[key.removeprefix("env.")] = value
    if "vllm.envs" in sys.modules:  # a hook may have replaced a variable in this very process
        sys.modules["vllm.envs"].__dict__.pop("VLLM_ATTENTION_BACKEND", None)
    clear_caches()
    answer = {"selected": None, "class": None, "engine": None, "error": None, "layer_accepts": None}
    answer |= {"layer_error": None, "valid_in_order": None, "invalid_reasons": None}
    try:
        job = Job(release, torch, workload)
        answer["engine"] = job.engine()
        job.configure()
        backend = job.select()
        answer["selected"] = backend.get_name()
        answer["class"] = f"{backend.__module__}.{backend.__qualname__}"
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        answer["error"] = first_line(problem)
        if os.environ.get("ASK_VLLM_TRACE"):
            traceback.print_exc()
    with contextlib.suppress(Exception):
        answer["valid_in_order"], answer["invalid_reasons"] = job.valid()
    if answer["selected"] is not None and not workload.get("mla"):
        try:
            job.construct(backend)
            answer["layer_accepts"] = True
        except Exception as problem:
            answer["layer_accepts"], answer["layer_error"] = False, first_line(problem)
            if os.environ.get("ASK_VLLM_TRACE"):
                traceback.print_exc()
    return answer


def exists(name):
    """Whether the release has the module `name`; only its packages are imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as problem:
        if not (problem.name or "").startswith("vllm."):
            raise
        return False


def first_line(problem):
    """Class and first line of an exception."""
    text = str(problem).splitlines()
    return f"{type(problem).__name__}: {text[0] if text else ''}"


class Job:
    """One engine start: the objects that vLLM would hand to its own functions."""

    def __init__(self, release, torch, workload):
        self.release, self.torch, self.workload = release, torch, workload
        self.dtype = getattr(torch, workload["dtype"])
        self.config = self._config()

    # -- configuration

    def _config(self):
        w = self.workload
        window = None if w.get("window") in (None, "absent") else w["window"][0] + 1
        text = types.SimpleNamespace(
            num_attention_heads=w["num_heads"], head_dim=w["head_dim_qk"], hidden_size=w["num_heads"] * w["head_dim_qk"]
        )
        for key in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "index_topk"):
            if w.get(key) is not None:
                setattr(text, key, w[key])
        if w.get("mla"):
            text.v_head_dim = w["head_dim_v"]
        dims = w.get("head_dims_of_layers")
        if dims:
            text.head_dim, text.global_head_dim = min(dims), max(dims)
            text.layer_types = [("sliding_attention", "full_attention")[dim == max(dims)] for dim in dims]
        if w.get("softcap"):
            text.attn_logit_softcapping = w["softcap"]
        block = w.get("block_size")
        cache = Lenient(
            block_size=block, cache_dtype=w.get("kv_cache_dtype", "auto"), user_specified_block_size=block is not None,
            enable_prefix_caching=True, mamba_block_size=None, sliding_window=window,
        )  # fmt: skip
        parallel = Lenient(
            decode_context_parallel_size=w.get("decode_context_parallel_size", 1), prefill_context_parallel_size=1,
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, worker_cls="auto",
            cp_kv_cache_interleave_size=1, dcp_kv_cache_interleave_size=1, enable_dbo=False, all2all_backend="naive",
            data_parallel_size_local=1, world_size=1, rank=0, dcp_comm_backend="ag_rs", enable_expert_parallel=False,
        )  # fmt: skip
        model = Lenient(
            dtype=self.dtype, use_mla=bool(w.get("mla")), hf_text_config=text, hf_config=text, max_model_len=4096,
            is_mm_prefix_lm=bool(w.get("multimodal_prefix_bidirectional")), is_diffusion=False, rswa_window=None,
            get_head_size=lambda: w.get("head_size_given_to_selector") or w["head_dim_qk"],
            get_num_attention_heads=lambda parallel_config: w["num_heads"], enforce_eager=False, quantization=None,
            get_num_kv_heads=lambda parallel_config: w["num_kv_heads"], is_encoder_decoder=False, task="generate",
            get_sliding_window=lambda: window, is_attention_free=False, is_hybrid=False, is_v1_compatible=True,
            runner_type="generate", is_deepseek_mla=bool(w.get("mla")), architectures=["Generic"], model="generic",
            attention_chunk_size=None, disable_cascade_attn=False, multimodal_config=None, is_multimodal_model=False,
            supported_runner_types=["generate"], supported_tasks=["generate"], disable_sliding_window=False,
            model_arch_config=Layers(dims or [w["head_dim_qk"]]),
        )  # fmt: skip
        scheduler = Lenient(
            is_multi_step=False, max_num_batched_tokens=2048, max_num_seqs=128, chunked_prefill_enabled=True,
            disable_chunked_mm_input=False, is_multimodal_model=False, enable_chunked_prefill=True,
            disable_chunked_mm_input_=False,
        )  # fmt: skip
        compilation = Lenient(
            static_forward_context={}, use_cudagraph=True, cudagraph_mode=None, custom_ops=[], level=0, mode=0,
            use_inductor=True, splitting_ops=[], cudagraph_capture_sizes=[1], max_cudagraph_capture_size=1,
            full_cuda_graph=False, enabled_custom_ops=Counter(), disabled_custom_ops=Counter(), pass_config=Lenient(),
        )  # fmt: skip
        config = Lenient(
            cache_config=cache, parallel_config=parallel, model_config=model, scheduler_config=scheduler,
            compilation_config=compilation, speculative_config=None, kv_transfer_config=None, lora_config=None,
            attention_config=None, quant_config=None, additional_config={}, kernel_config=Lenient(),
            offload_config=Lenient(uva=Lenient(cpu_offload_gb=0)), observability_config=Lenient(),
            device_config=Lenient(device=self.torch.device("cpu")), load_config=Lenient(), instance_id="x",
        )  # fmt: skip
        return config

    def _attention_config(self):
        """The release's real AttentionConfig, made as the command line makes it."""
        try:
            module = importlib.import_module("vllm.config.attention")
        except ImportError:
            return None
        w, given = self.workload, {}
        fields = getattr(module.AttentionConfig, "__dataclass_fields__", {})
        if w.get("attention_backend_option") is not None:
            given["backend"] = w["attention_backend_option"]
        if w.get("flash_attn_version_option") is not None:
            given["flash_attn_version"] = w["flash_attn_version_option"]
        if w.get("non_causal") and "use_non_causal" in fields:
            given["use_non_causal"] = True
        return module.AttentionConfig(**given)

    def engine(self):
        """V0 or V1, as `EngineArgs.create_engine_config` decides in releases that have both."""
        envs = importlib.import_module("vllm.envs")
        source = Path(importlib.util.find_spec("vllm.engine").origin).parent / "arg_utils.py"
        if "_is_v1_supported_oracle" not in source.read_text():
            if "VLLM_USE_V1" in getattr(envs, "environment_variables", {}):
                return "V1" if envs.VLLM_USE_V1 else "V0"
            return "V1" if importlib.util.find_spec("vllm.v1") else "V0"
        arguments = importlib.import_module("vllm.engine.arg_utils")
        oracle = arguments.EngineArgs._is_v1_supported_oracle
        engine_arguments = arguments.EngineArgs(
            model="generic", kv_cache_dtype=self.workload.get("kv_cache_dtype", "auto"),
            block_size=self.workload.get("block_size"),
        )  # fmt: skip
        use_v1 = False
        if (envs.VLLM_USE_V1 or not envs.is_set("VLLM_USE_V1")) and oracle(engine_arguments, self.config.model_config):
            use_v1 = True
        if envs.is_set("VLLM_USE_V1"):
            assert use_v1 == envs.VLLM_USE_V1
        else:
            envs.set_vllm_use_v1(use_v1)
        return "V1" if use_v1 else "V0"

    def configure(self):
        """The hooks of model and platform that run before any layer is built."""
        from vllm.platforms import current_platform

        w = self.workload
        self.config.attention_config = self._attention_config()
        hook = None
        if w.get("mla_sparse"):
            hook = "DeepseekV32ForCausalLM"
        elif w.get("head_dims_of_layers"):
            hook = "Gemma4ForCausalLM"
        if hook and exists("vllm.model_executor.models.config"):
            hooks = importlib.import_module("vllm.model_executor.models.config").MODELS_CONFIG_MAP
            if hook in hooks:
                hooks[hook].verify_and_update_config(self.config)
        check = getattr(current_platform, "check_and_update_config", None)
        if check:
            check(self.config)
        if self.config.cache_config.block_size is None:
            self.config.cache_config.block_size = 16

    @contextlib.contextmanager
    def current(self):
        """Make the substitute the current configuration."""
        module = importlib.import_module("vllm.config")
        with contextlib.suppress(ImportError):
            module = importlib.import_module("vllm.config.vllm")
        before = getattr(module, "_current_vllm_config", None)
        module._current_vllm_config = self.config
        try:
            yield
        finally:
            module._current_vllm_config = before

    # -- selection

    def _selector(self):
        names = ("vllm.v1.attention.selector", "vllm.attention.selector")
        return importlib.import_module(next(name for name in names if exists(name)))

    def _cache_dtype(self):
        return self.config.cache_config.cache_dtype

    def select(self):
        """The class that `get_attn_backend` returns."""
        w, cache = self.workload, self.config.cache_config
        function = self._selector().get_attn_backend
        window = None if w.get("window") in (None, "absent") else w["window"][0] + 1
        values = {
            "num_heads": w["num_heads"], "head_size": w.get("head_size_given_to_selector") or w["head_dim_qk"],
            "num_kv_heads": w["num_kv_heads"], "sliding_window": window, "dtype": self.dtype,
            "kv_cache_dtype": self._cache_dtype(), "block_size": cache.block_size, "is_attention_free": False,
            "is_blocksparse": False, "use_mla": bool(w.get("mla")), "has_sink": bool(w.get("sinks")),
            "use_sparse": bool(w.get("mla_sparse")), "use_mm_prefix": bool(w.get("multimodal_prefix_bidirectional")),
            "attn_type": w.get("attention_type", "decoder"), "has_sliding_window": window is not None,
        }  # fmt: skip
        wanted = inspect.signature(function).parameters
        with self.current():
            return function(**{key: value for key, value in values.items() if key in wanted})

    def valid(self):
        """What `get_valid_backends` says of an automatic choice."""
        from vllm.platforms import current_platform

        kept = {}
        real = type(current_platform).get_attn_backend_cls
        ignores_block_size = "_replace(block_size=None)" in inspect.getsource(real)

        def spy(cls_or_backend, *args, **kwargs):
            kept["kwargs"], kept["args"] = kwargs, args
            raise StopIteration

        current_platform.__class__.get_attn_backend_cls = spy
        try:
            clear_caches()
            with contextlib.suppress(StopIteration):
                self.select()
        finally:
            type(current_platform).get_attn_backend_cls = real
        capability = current_platform.get_device_capability()
        if ignores_block_size:
            chosen = kept["kwargs"]["attn_selector_config"]
            kept["kwargs"]["attn_selector_config"] = chosen._replace(block_size=None)
        with self.current():
            found, reasons = current_platform.get_valid_backends(device_capability=capability, **kept["kwargs"])
        names = [item[1].name if hasattr(item[1], "name") else item[0].name for item in found]
        return names, {
            key.name: (value[1] if isinstance(value, tuple) else value) for key, value in reasons.items()
        }  # fmt: skip

    def construct(self, backend):
        """Build the implementation as `Attention.__init__` does."""
        w = self.workload
        impl = backend.get_impl_cls()
        window = None if w.get("window") in (None, "absent") else w["window"][0] + 1
        slopes = [2.0 ** -(i + 1) for i in range(w["num_heads"])] if w.get("bias") == "alibi" else None
        head = w.get("head_size_given_to_selector") or w["head_dim_qk"]
        args = [w["num_heads"], head, head**-0.5, w["num_kv_heads"], slopes, window, self._cache_dtype()]
        wanted = inspect.signature(impl.__init__).parameters
        names = list(wanted)
        softcap = w.get("softcap") or None
        if "blocksparse_params" in wanted:
            args.append(None)
        if "logits_soft_cap" in wanted or not any(name in names for name in ("logits_soft_cap",)):
            args.append(softcap)
        kind = w.get("attention_type", "decoder")
        extra = {}
        if "attn_type" in wanted:
            args.append(self._attention_type(kind))
        if "kv_sharing_target_layer_name" in wanted:
            args.append(None)
        if "use_irope" in wanted and names.index("use_irope") == len(args) + 1:
            extra["use_irope"] = False
        if w.get("sinks"):
            extra["sinks"] = self.torch.zeros(w["num_heads"])
        with self.current():
            return impl(*args, **extra)

    def _attention_type(self, kind):
        for name in ("vllm.v1.attention.backend", "vllm.attention.backends.abstract", "vllm.attention"):
            with contextlib.suppress(ImportError, AttributeError):
                return getattr(importlib.import_module(name).AttentionType, kind.upper())
        return kind


# -- random workloads --------------------------------------------------------------------------------------------------

MODELS = (  # name, query heads, key/value heads, head width, more
    ("llama-3-8b", 32, 8, 128, {}),
    ("gemma", 16, 16, 256, {}),
    ("gemma-2-9b full", 16, 8, 256, {"softcap": 50.0}),
    ("gemma-3-4b", 8, 4, 256, {"window": 1024, "multimodal_prefix_bidirectional": True}),
    ("gpt-oss full", 64, 8, 64, {"sinks": True}),
    ("wide layer alone", 8, 2, 512, {}),
    ("glm-5", 64, 1, 256, {"mla": True, "mla_sparse": True, "index_topk": 2048, "qk_nope_head_dim": 192,
                           "head_dim_v": 256}),
    ("qwen2-0.5b", 14, 2, 64, {}),
    ("gemma-2-9b", 16, 8, 256, {"window": 4096, "softcap": 50.0}),
    ("gemma-3-27b", 32, 16, 128, {"window": 1024, "multimodal_prefix_bidirectional": True}),
    ("gemma-4 full", 8, 2, 512, {"head_dims_of_layers": [256, 256, 512]}),
    ("gemma-4 sliding", 8, 2, 256, {"head_dims_of_layers": [256, 256, 512], "window": 1024}),
    ("gpt-oss", 64, 8, 64, {"sinks": True, "window": 128}),
    ("phi-3", 32, 32, 96, {"window": 2047}),
    ("phi-2", 32, 32, 80, {}),
    ("bloom", 32, 32, 128, {"bias": "alibi"}),
    ("mistral", 32, 8, 128, {"window": 4096}),
    ("bert", 12, 12, 64, {"attention_type": "encoder_only"}),
    ("whisper", 20, 20, 64, {"attention_type": "encoder_decoder"}),
    ("deepseek-v3", 128, 1, 192, {"mla": True}),
    ("deepseek-v3 tp8", 16, 1, 192, {"mla": True}),
    ("deepseek-v2-lite", 16, 1, 192, {"mla": True}),
    ("minicpm3", 40, 1, 96, {"mla": True, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
                            "head_dim_v": 64}),
    ("deepseek-v3.2", 128, 1, 192, {"mla": True, "mla_sparse": True, "index_topk": 2048}),
    ("deepseek-v3.2 tp8", 16, 1, 192, {"mla": True, "mla_sparse": True, "index_topk": 2048}),
    ("odd width", 16, 16, 72, {}),
    ("wide", 16, 4, 192, {}),
    ("wider", 8, 8, 288, {}),
)  # fmt: skip
NAMES = (
    "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "XFORMERS", "TRITON_MLA", "FLASHMLA", "CUTLASS_MLA",
    "FLASH_ATTN_MLA", "FLASHINFER_MLA", "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE", "TREE_ATTN", "TORCH_SDPA",
    "ROCM_FLASH", "FLASH_ATTN_VLLM_V1", "TRITON_ATTN_VLLM_V1", "FLASHINFER_VLLM_V1", "TOKENSPEED_MLA", "TURBOQUANT",
    "FLASH_ATTN_MLA_SPARSE", "NONSENSE", "XFORMERS_VLLM_V1", "FLASHMLA_VLLM_V1", "TRITON_FLASH_ATTN",
    "TRITON_FLASHINFER",
    "FLASHINFER_MLA_SPARSE_SM90", "FLASHINFER_MLA_SPARSE_SM120", "FLASH_ATTN_MLA_SPARSE_FA4", "FLASH_ATTN_DIFFKV",
)  # fmt: skip


def cache_dtypes(sources):
    """What the release takes for `--kv-cache-dtype`."""
    package = sources / "vllm"
    files = [*package.glob("config*"), *package.glob("config/*.py"), package / "engine" / "arg_utils.py"]
    text = "\n".join(path.read_text() for path in files if path.is_file())
    listed = re.search(r"CacheDType = Literal\[.*?\]|\bchoices=\['auto', 'fp8'.*?\]", text, re.S)
    return tuple(re.findall(r"['\"](\w+)['\"]", listed.group()))


def random_case(draw, release, pins):
    """One machine and one workload; rare settings are drawn often enough to be seen."""
    name, heads, kv_heads, width, more = draw.choice(MODELS)
    minor = int(release.split(".")[1])
    modern = minor >= 11
    workload = {
        "framework": "vllm", "model": name, "dtype": draw.choice(("bfloat16",) * 5 + ("float16", "float16", "float32")),
        "head_dim_qk": width, "head_dim_v": width, "num_heads": heads, "num_kv_heads": kv_heads,
        "inference_kv_cache": True, "training": False,
        "kv_cache_dtype": draw.choice(("auto",) * 14 + ("fp8",) * 4 + pins["cache"]),
        "block_size": draw.choice((None,) * 6 + (8, 16, 24, 32, 64, 128, 256)), "mla": False, "mla_sparse": False,
        "softmax_type": "vanilla", "sinks": False, "window": "absent", "bias": "no_bias", "softcap": 0.0,
        "attention_type": "decoder", "multimodal_prefix_bidirectional": False, "non_causal": draw.random() < 0.03,
        "decode_context_parallel_size": 2 if draw.random() < 0.03 else 1, "attention_backend_option": None,
        "flash_attn_version_option": None,
    }  # fmt: skip
    if more.get("mla"):
        workload.update(head_dim_v=128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, index_topk=None)
    workload.update(more)
    if isinstance(workload["window"], int):
        workload["window"] = [workload["window"] - 1, 0]
    for key, values, odds in (
        ("window", ("absent", [127, 0], [511, 0], [1023, 0], [4095, 0]), 0.2), ("softcap", (0.0, 30.0, 50.0), 0.1),
        ("sinks", (False, True), 0.1), ("bias", ("no_bias", "alibi"), 0.08),
        ("multimodal_prefix_bidirectional", (False, True), 0.08),
        ("attention_type", ("decoder", "encoder", "encoder_only", "encoder_decoder"), 0.05),
        ("num_heads", (8, 16, 32, 64, 128), 0.1),
    ):  # fmt: skip
        latent = workload["mla"] and key not in ("num_heads", "window", "softcap")
        if draw.random() < odds and not latent and (key != "attention_type" or modern):
            workload[key] = draw.choice(values)
    if workload["num_heads"] % workload["num_kv_heads"]:
        workload["num_kv_heads"] = workload["num_heads"]
    workload["softmax_type"] = "learnable" if workload["sinks"] else "vanilla"
    if draw.random() < 0.25 and not workload["mla"]:
        width = draw.choice((32, 40, 64, 72, 80, 96, 112, 120, 128, 160, 192, 224, 256, 288, 512, 576))
        workload.update(head_dim_qk=width, head_dim_v=width)
    workload["head_size_given_to_selector"] = (
        workload["kv_lora_rank"] + workload["qk_rope_head_dim"] if workload["mla"] else workload["head_dim_qk"]
    )
    facts = {"vllm.version": release, "gpu.sm": draw.choice(CAPABILITIES), "torch.cuda": draw.choice(("12.8", "13.0"))}
    for package in OPTIONAL:
        if package in pins:
            facts[f"{package}.version"] = pins[package] if draw.random() < 0.85 else "absent"
        else:
            facts[f"{package}.version"] = "absent"
    if "flashinfer-python" not in pins and draw.random() < 0.5:
        facts["flashinfer-python.version"] = "0.2.5"
    if draw.random() < 0.12:
        facts["env.VLLM_ATTENTION_BACKEND"] = draw.choice(NAMES)
    if minor >= 13 and draw.random() < 0.15:
        workload["attention_backend_option"] = draw.choice(
            [NAMES, [name.lower() for name in NAMES]][draw.random() < 0.5]
        )
    if minor >= 13 and draw.random() < 0.08:
        workload["flash_attn_version_option"] = draw.choice((2, 3, 4))
    if draw.random() < 0.06:
        facts["env.VLLM_USE_V1"] = draw.choice("01")
    if draw.random() < 0.05:
        facts["env.VLLM_FLASH_ATTN_VERSION"] = draw.choice("23")
    if draw.random() < 0.05:
        facts["env.VLLM_BATCH_INVARIANT"] = "1"
    if draw.random() < 0.06:
        facts["env.VLLM_USE_TRTLLM_ATTENTION"] = draw.choice("01")
    kinds = draw.choice(
        ((),) * 8 + ("_vllm_fa2_C _vllm_fa3_C vllm_flash_attn_c", "_flashmla_C _flashmla_extension_C", "_vllm_fa3_C")
    )
    missing = [name for name in pins["compiled"] if kinds and name.rpartition(".")[2] in kinds.split()]
    machine = {
        "nvcc": draw.random() < 0.9, "nvidia_artifactory_reachable": draw.random() < 0.9,
        "compiled_modules_missing": sorted(missing),
    }  # fmt: skip
    return {"facts": facts, "machine": machine, "workload": workload}


# -- processes ---------------------------------------------------------------------------------------------------------


def surroundings_key(case):
    """Cases with the same key can share a process."""
    facts = {key: value for key, value in case["facts"].items() if not key.startswith("env.")}
    return json.dumps([facts, case["machine"]], sort_keys=True)


def answer_group(finder, cases, write):
    """Answer cases of one machine in a forked process."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status) == 0
    code = 1
    try:
        become(finder, cases[0]["facts"], cases[0]["machine"])
        with contextlib.redirect_stdout(sys.stderr):
            for case in cases:
                write({**case, "expected": ask(case["facts"]["vllm.version"], case["facts"], case["workload"])})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def warm_up(sources, case):
    """Import what every case needs, but no backend: those look at the machine while they are imported."""
    finder = prepare(sources)
    become(finder, {**case["facts"], "flashinfer-python.version": "absent"}, {})
    for name in ("vllm.config", "vllm.v1.attention.selector", "vllm.attention.selector"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    early = [name for name in sys.modules if "attention.backends.f" in name or "vllm_flash_attn." in name]
    if early:
        print("imported before the machine was known:", *early, file=sys.stderr)
    return finder


def main():
    """Answer every case, grouped by machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, help="an unpacked wheel")
    parser.add_argument("--cases", type=Path, help="JSON Lines with facts, machine and workload")
    parser.add_argument("--random", type=int, default=0, help="so many random cases instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--machines", type=int, default=40, help="random machines to spread the random cases over")
    parser.add_argument("--packages", type=Path, action="append", default=[], help="folder of further packages")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    sys.path[:0] = [str(path) for path in options.packages]
    sources = options.sources.resolve()
    release = release_of(sources)
    if options.cases:
        cases = [json.loads(line) for line in options.cases.read_text().splitlines()]
        cases = [case for case in cases if case["facts"]["vllm.version"] == release]
    else:
        cases = random_cases(sources, release, options)
    for name in ("torch", "torch._dynamo", "torch._inductor.standalone_compile", "transformers.dynamic_module_utils"):
        with contextlib.suppress(ImportError):  # before the forks, which share it
            importlib.import_module(name)
    for name in ("AutoConfig", "PretrainedConfig", "PreTrainedConfig", "PreTrainedTokenizerBase", "GenerationConfig"):
        with contextlib.suppress(ImportError, AttributeError):
            getattr(importlib.import_module("transformers"), name)
    groups = {}
    for case in cases:
        groups.setdefault(surroundings_key(case), []).append(case)
    finder = warm_up(sources, cases[0])
    failed = 0
    with options.output.open("a") as output:

        def write(record):
            output.write(json.dumps(record) + "\n")
            output.flush()

        for group in groups.values():
            failed += not answer_group(finder, group, write)
    print(f"{release}: {len(cases)} cases, {len(groups)} machines, {failed} processes failed", file=sys.stderr)
    return int(failed > 0)


def random_cases(sources, release, options):
    """Random workloads on a limited number of random machines, so that processes are shared."""
    draw = random.Random(f"{release} {options.seed}")
    pins = {**pinned(sources), "compiled": sorted(compiled_modules(sources)), "cache": cache_dtypes(sources)}
    machines = []
    for capability in CAPABILITIES:
        for _ in range(max(1, options.machines // len(CAPABILITIES))):
            case = random_case(draw, release, pins)
            case["facts"]["gpu.sm"] = capability
            machines.append(case)
    cases = []
    for number in range(options.random):
        case, host = random_case(draw, release, pins), draw.choice(machines)
        env = {key: value for key, value in case["facts"].items() if key.startswith("env.")}
        facts = {key: value for key, value in host["facts"].items() if not key.startswith("env.")}
        identity = f"vllm-{release}-{options.seed}-{number:04d}"
        cases.append(
            {"id": identity, "facts": {**facts, **env}, "machine": host["machine"], "workload": case["workload"]}
        )
    return cases


if __name__ == "__main__":
    sys.exit(main())
