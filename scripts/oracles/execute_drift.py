"""Find the truth of pairs by execution: run the caller's real functions against the callee's real signatures.

    python scripts/oracles/execute_drift.py [--cache DIR] [--output tests/drift/executed.json]

In a child process without site-packages, both packages are imported for real; everything else (torch, CUDA modules) is
a permissive substitute. Each function of the callee is replaced by a recorder that binds the arguments to the real
signature (`inspect.signature(f).bind`) and returns a tuple as long as the real `return` statements say. Then every
function of the caller that can be called is called, several times, with other answers to its conditions. A refused
binding, a failed unpacking, an index out of range or a failed import of a callee's name is a violation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.drift.download import fetch_release  # noqa: E402
from doctor.errors import DoctorError  # noqa: E402

FLASH = (
    "2.2.5",
    "2.3.3",
    "2.4.1",
    "2.5.2",
    "2.5.7",
    "2.6.0.post1",
    "2.6.2",
    "2.6.3",
    "2.7.1.post4",
    "2.7.3",
    "2.8.0.post2",
)
PAIRS = [
    *((("ring-flash-attn", version), ("flash-attn", flash)) for version in ("0.1.1", "0.1.3", "0.1.5", "0.1.7")
      for flash in FLASH),
    *((("yunchang", version), ("flash-attn", flash)) for version in ("0.5.0", "0.6.0", "0.6.2", "0.6.3")
      for flash in FLASH[2:]),
]  # fmt: skip

CHILD = r"""
import ast, builtins, functools, importlib, importlib.abc, importlib.machinery, importlib.metadata, inspect, json, os
import pkgutil, signal, sys, types
caller, callee, packaging, callee_top = sys.argv[1:5]
sys.path[:0] = [caller, callee, packaging]
POLICY = [0, 0]
LOG, REACHED = {}, set()

class Base:
    @classmethod
    def apply(cls, *a): return Anything()

class Anything:
    def __init__(self, *a, **k): pass
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"): raise AttributeError(name)
        return Anything()
    def __call__(self, *a, **k):
        if len(a) == 1 and not k and (inspect.isfunction(a[0]) or inspect.isclass(a[0])): return a[0]
        return Anything()
    def __mro_entries__(self, bases): return (Base,)
    def __bool__(self):
        POLICY[1] += 1
        return POLICY[1] % 2 == 0 if POLICY[0] == 2 else bool(POLICY[0])
    def __iter__(self):
        frame = sys._getframe(1)
        code, at = frame.f_code.co_code, frame.f_lasti
        names = {v: k for k, v in __import__("dis").opmap.items()}
        name = names.get(code[at]) if at >= 0 else ""
        count = code[at + 1] if name == "UNPACK_SEQUENCE" else (code[at + 1] if name == "UNPACK_EX" else 2)
        return iter([Anything() for _ in range(count)])
    def __len__(self): return 2
    def __index__(self): return 2
    def __int__(self): return 2
    def __float__(self): return 2.0
    def __hash__(self): return 1
    def __enter__(self): return self
    def __exit__(self, *a): return False
    def __getitem__(self, key): return Anything()
    def __setitem__(self, key, value): pass
    def __delitem__(self, key): pass
    def __contains__(self, key): return bool(self)
def _op(self, *a): return Anything()
for _n in ("add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul neg pos abs and "
           "rand or ror xor "
           "invert lshift rshift lt le gt ge eq ne iadd isub imul itruediv ior iand").split():
    setattr(Anything, f"__{_n}__", _op)

class Stand(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"): raise AttributeError(name)
        return Anything()
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in OWN: return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = Stand(spec.name)
        if spec.name == "torch": module.__version__ = "2.4.0"
        return module
    def exec_module(self, module): pass
OWN = {p.partition(".")[0] for d in (caller, callee) for p in os.listdir(d) if not p.endswith(".so")} | {"packaging"}
sys.meta_path.append(Finder())
_version = importlib.metadata.version
def version(name):
    return "2.4.0" if name == "torch" else _version(name)
importlib.metadata.version = version

def site():
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith(caller): frame = frame.f_back
    return f"{os.path.relpath(frame.f_code.co_filename, caller)}:{frame.f_lineno}" if frame else ""
def lengths(function):
    tree = ast.parse(__import__("textwrap").dedent(inspect.getsource(function)))
    returns = [n.value for n in ast.walk(tree) if isinstance(n, ast.Return)]
    return {len(value.elts) if isinstance(value, ast.Tuple) else 0 for value in returns}
def record(module, name, function):
    signature, counts = inspect.signature(function), lengths(function)
    @functools.wraps(function)
    def recorder(*args, **kwargs):
        where = site()
        REACHED.add(where)
        symbol = f"{module}.{name}"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            LOG.setdefault((where, symbol), ("bind", str(error)))
        count = next(iter(counts)) if len(counts) == 1 else 0
        LAST[0] = symbol
        return tuple(Anything() for _ in range(count)) if count else Anything()
    recorder.__signature__ = signature
    del recorder.__wrapped__
    return recorder
LAST = [""]
for short in ("flash_attn_interface", "bert_padding"):
    name = f"{callee_top}.{short}"
    try:
        module = importlib.import_module(name)
    except Exception as error:
        sys.stderr.write(f"{name} did not import: {error!r}\n"); sys.exit(1)
    for attribute, value in list(vars(module).items()):
        if inspect.isfunction(value) and value.__module__ == name:
            wrapped = record(name, attribute, value)
            setattr(module, attribute, wrapped)
            top = sys.modules[callee_top]
            if getattr(top, attribute, None) is value: setattr(top, attribute, wrapped)

class Late(Exception): pass
def late(*a): raise Late
signal.signal(signal.SIGALRM, late)
def attempt(function, *args):
    for policy in (0, 1, 2):
        POLICY[:] = [policy, 0]
        signal.setitimer(signal.ITIMER_REAL, 2)
        try:
            function(*args)
        except Late: pass
        except (ValueError, IndexError) as error:
            text = str(error)
            trace = error.__traceback__
            while trace.tb_next: trace = trace.tb_next
            file = trace.tb_frame.f_code.co_filename
            if ("values to unpack" in text or "index out of range" in text) and file.startswith(caller):
                where = f"{os.path.relpath(file, caller)}:{trace.tb_lineno}"
                LOG.setdefault((where, LAST[0]), ("unpack", text))
        except BaseException: pass
        finally: signal.setitimer(signal.ITIMER_REAL, 0)
def required(function):
    return [Anything() for p in inspect.signature(function).parameters.values()
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
top = next(p for p in sorted(os.listdir(caller)) if os.path.isfile(os.path.join(caller, p, "__init__.py")))
modules, UNREAD = [], []
for folder, _, files in sorted(os.walk(os.path.join(caller, top))):
    for file in sorted(files):
        path = os.path.join(folder, file)
        if file.endswith(".py") and callee_top.encode() in open(path, "rb").read():
            name = os.path.relpath(path, caller)[:-3].replace(os.sep, ".")
            modules.append(name[:-9] if name.endswith(".__init__") else name)
for name in modules:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        text = str(error)
        if callee_top in text and "cannot import name" in text:
            LOG.setdefault((name, text.split("'")[1]), ("import", text))
        else: UNREAD.append(f"{name}: {error!r}")
        continue
    except BaseException as error:
        UNREAD.append(f"{name}: {error!r}"); continue
    for value in list(vars(module).values()):
        if inspect.isfunction(value) and value.__module__ == name:
            attempt(value, *required(value))
        elif inspect.isclass(value) and value.__module__ == name:
            for method in list(vars(value).values()):
                if isinstance(method, staticmethod):
                    attempt(method.__func__, *required(method.__func__), *[Anything() for p in
                        inspect.signature(method.__func__).parameters.values() if p.kind is p.VAR_POSITIONAL])
                elif inspect.isfunction(method):
                    attempt(method, *required(method))
violations = [[*k, *v] for k, v in sorted(LOG.items())]
print("\n" + json.dumps({"reached": sorted(REACHED), "unread": UNREAD, "violations": violations}))
"""


def execute(caller: Path, callee: Path, scratch: Path) -> dict[str, object]:
    """Return what the child saw: call sites that were reached, and violations."""
    import packaging

    folder = scratch / "packaging"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "packaging"
    if not link.exists():
        link.symlink_to(Path(packaging.__file__).parent, target_is_directory=True)
    program = scratch / "child.py"
    program.write_text(CHILD)
    ended = subprocess.run(
        [sys.executable, "-S", "-E", str(program), str(caller), str(callee), str(folder), "flash_attn"],
        capture_output=True, text=True, timeout=600, cwd=scratch,
    )  # fmt: skip
    lines = [line for line in ended.stdout.splitlines() if line.startswith('{"reached"')]
    if not lines:
        raise DoctorError("the child gave no answer", ended.stderr[-500:])
    answer: dict[str, object] = json.loads(lines[-1])
    return answer


def main() -> int:
    """Write the answers."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cache", type=Path, default=Path("/tmp/drift/src"))
    options.add_argument("--output", type=Path, default=ROOT / "tests" / "drift" / "executed.json")
    chosen = options.parse_args()
    rows = []
    for (caller, version), (callee, release) in PAIRS:
        try:
            places = fetch_release(caller, version, chosen.cache), fetch_release(callee, release, chosen.cache)
            answer = execute(*places, chosen.cache.parent / "execute")
        except (DoctorError, subprocess.TimeoutExpired) as error:
            print(f"{caller} {version} x {callee} {release}: {error}", file=sys.stderr)
            continue
        violations, reached = answer["violations"], answer["reached"]
        assert isinstance(violations, list) and isinstance(reached, list)
        if not reached and not violations:
            print(f"{caller} {version} x {callee} {release}: no call site was reached", file=sys.stderr)
            continue
        if answer["unread"] and not violations:
            print(f"{caller} {version} x {callee} {release}: not imported: {answer['unread']}", file=sys.stderr)
            continue  # right as far as it ran, which says too little
        rows.append({
            "caller": caller, "caller_version": version, "callee": callee, "callee_version": release,
            "verdict": "broken" if violations else "ok", "reached": len(reached), "violations": violations,
        })  # fmt: skip
        print(f"{caller} {version} x {callee} {release}: {rows[-1]['verdict']}, {len(reached)} call sites reached")
    chosen.output.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
