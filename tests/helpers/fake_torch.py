"""What replaces torch in a child process: two GPUs that obey CUDA_VISIBLE_DEVICES, and whatever goes wrong there."""

INIT = """
import os, sys, types
__version__ = "2.11.0+fake"
version = types.SimpleNamespace(cuda="13.0")
bfloat16 = float16 = float32 = int32 = None
mode = os.environ.get("FAKE", "")

class Tensor:
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return 1.0

def ones(*shape, device=None): return Tensor()

def compile(function, **how): return function

def _seen():
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mode == "no permission": return []
    if listed is None: return ["0", "1"]
    kept = []
    for token in (t.strip() for t in listed.split(",")):
        if token not in ("0", "1", "GPU-aa", "GPU-bb", "MIG-cc"): break  # CUDA stops at what it does not know
        if token in kept: return []  # one that is named twice: none are seen
        kept.append(token)
    return kept

class cuda:
    is_available = staticmethod(lambda: bool(_seen()))
    device_count = staticmethod(lambda: len(_seen()))
    @staticmethod
    def init(): raise RuntimeError("Unexpected error from cudaGetDeviceCount(). Error 999: unknown error")
    @staticmethod
    def get_device_properties(index):
        mig = _seen()[index].startswith("MIG")
        return types.SimpleNamespace(name="NVIDIA H200" + (" MIG 1g.18gb" if mig else ""), major=9, minor=0,
            total_memory=2**34 if mig else 2**37, multi_processor_count=132, uuid="uuid-" + _seen()[index])
    @staticmethod
    def mem_get_info(index):
        if mode == "gone" and index == 1: raise RuntimeError("CUDA error: GPU is lost")
        return (2**33, 2**37) if mode == "busy" else (2**37 - 2**30, 2**37)
    @staticmethod
    def utilization(index):
        if mode == "busy": return 97
        raise ModuleNotFoundError("pynvml")

def _module(name, **what):
    made = sys.modules["torch." + name] = types.ModuleType("torch." + name)
    vars(made).update(what)
    return made

nn = _module("nn"); _module("nn.functional", scaled_dot_product_attention=lambda *a, **k: None)
_module("nn.attention", SDPBackend=None, sdpa_kernel=None)
"""

#: Libraries that misbehave when they are imported: name → source.
HOSTILE = {
    "flash_attn": "import os; os._exit(0)",
    "xformers": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "sageattention": "print('x' * 100000, flush=True)\nimport os\nos.fork()\nsageattn = None",
    "fa3_fwd_interface": "import warnings\nfor i in range(20000): warnings.warn(f'{i} things are deprecated')\n"
    "def flash_attn_func(): pass",
    "transformer_engine": "raise SystemExit('not on this machine')",
    "flash_attn_interface": "pass",  # there, and without what it is known for
}


def install(folder, *hostile):
    """A folder to put on PYTHONPATH: the fake torch, and the libraries named."""
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text(INIT)
    for name in hostile:
        (folder / f"{name}.py").write_text(HOSTILE[name])
    return folder
