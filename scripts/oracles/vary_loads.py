"""Compare predicted and real loads in generated environments.

    python scripts/oracles/vary_loads.py [--count 300] [--seed 1] [--rooted] [--show]

Each environment is a folder with small libraries made by gcc and a program that opens some of them. They vary in
DT_RPATH, DT_RUNPATH, SONAME, links, missing and damaged files, hardware subfolders, symbols and their versions,
LD_LIBRARY_PATH and LD_PRELOAD. After each `dlopen` of the program, the loaded files, in their order, and the kind of a
failure must be those that the model predicts. With `--rooted`, each folder is the root of a `chroot` with its own
ldconfig cache and default folders, which needs the rights of root.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from doctor.sources.binaries.elf import Summary  # noqa: E402
from doctor.sources.binaries.files import Damaged, Disk  # noqa: E402
from doctor.sources.binaries.fit import SymbolBinder  # noqa: E402
from doctor.sources.binaries.loader import Failure, FailureKind, Loaded, Process  # noqa: E402

NAMES = "pqrstv"
#: The first pattern that a real message matches gives the kind of the failure.
_MESSAGES = (
    (FailureKind.UNDEFINED_SYMBOL, r"undefined symbol: (\w+)"),
    (FailureKind.SYMBOL_VERSION, r"version `(\w+)' not found"),
    (FailureKind.MISSING_LIBRARY, r"([^\s:]+): cannot open shared object file(?!: Exec format)"),
    (FailureKind.OTHER_MACHINE, r"(wrong ELF class|ELF file's machine|cannot open shared object file: Exec format)"),
    (FailureKind.DAMAGED, r"(invalid ELF header|file too short|cannot read file data|ELF load command)"),
)
#: A search passes over files of another machine, so that the message depends on what else it found.
_EQUAL = {str(FailureKind.OTHER_MACHINE): str(FailureKind.MISSING_LIBRARY)}
_HOST = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
static int show(struct dl_phdr_info *info, size_t size, void *data) { printf("  %s\n", info->dlpi_name); return 0; }
int main(int count, char **word) {
    void *handle[64] = {0};
    setvbuf(stdout, 0, _IOLBF, 0); puts("start"); dl_iterate_phdr(show, 0);
    for (int n = 1; n < count; n++) {            /* <caller or -><g or l><name> */
        int flags = RTLD_NOW | (word[n][1] == 'g' ? RTLD_GLOBAL : RTLD_LOCAL);
        void *(*open)(const char *, int) = 0;
        if (word[n][0] != '-') {
            void *owner = handle[word[n][0] - '0'];
            open = owner ? dlsym(owner, "open_from_here") : 0;
            if (!open) { puts("skipped"); continue; }
        }
        handle[n - 1] = open ? open(word[n] + 2, flags) : dlopen(word[n] + 2, flags);
        puts(handle[n - 1] ? "ok" : dlerror());
        dl_iterate_phdr(show, 0);
    }
    fflush(stdout); _exit(0);
}
"""
_ENTER = """
import os, sys
os.chroot(sys.argv[1])
os.chdir("/")
os.execve(sys.argv[2], sys.argv[2:], dict(word.split("=", 1) for word in os.environ["WORDS"].split("\\n") if word))
"""
Step = tuple[str, tuple[str, ...]]  # outcome, loaded files without links


@dataclass
class Case:
    """One environment: its folder, the variables and what the program opens."""

    folder: Path  # without links
    seed: int
    rooted: bool = False
    environ: dict[str, str] = field(default_factory=dict)
    opens: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def path(self, inside: str) -> str:
        """Return the absolute name under which the program knows a file."""
        return f"/{inside}" if self.rooted else f"{self.folder}/{inside}"


def compile_c(source: str, target: Path, *options: str) -> None:
    """Compile a C source; an error of the compiler ends the script."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-w", "-fPIC", "-O0", "-x", "c", "-", "-o", str(target), *options]
    subprocess.run(command, input=source, text=True, check=True, cwd=target.parents[0])


class Generator:
    """Writes one environment; all choices come from its seed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.chance = random.Random(case.seed)
        self.folders = self.chance.sample(["d0", "d1", "d2/lib", "d3", "d4/deep"], 4)
        if case.rooted:
            self.folders[:2] = self.chance.sample(["usr/lib", "lib64", "opt/listed", "usr/lib/x86_64-linux-gnu"], 2)
        self.names = NAMES[: self.chance.randint(3, 6)]
        self.sonames = {
            name: self.chance.choice([f"lib{name}.so"] * 3 + [f"lib{name}.so.1", None]) for name in self.names
        }
        self.needs = {
            name: [other for other in self.names[index + 1 :] if self.chance.random() < 0.4]
            for index, name in enumerate(self.names)
        }
        self.copies: dict[str, list[str]] = {}
        self.versioned = {name for name in self.names if self.chance.random() < 0.3}

    def run(self) -> None:
        """Write the libraries, the program and the variables."""
        for name in reversed(self.names):
            self._library(name)
        self._program()
        self._disturb()
        self._variables()
        self._opens()
        if self.case.rooted:
            self._system()

    def _paths(self, depth_from: str) -> str:
        """Return a run path: absolute, by $ORIGIN, relative, with empty entries and folders that do not exist."""
        found = []
        for folder in self.chance.sample(self.folders, self.chance.randint(1, 3)):
            up = os.path.relpath(folder, depth_from)
            if self.case.rooted and depth_from == "bin":  # the program's $ORIGIN needs /proc, which is not inside
                found.append(self.chance.choice([self.case.path(folder), folder]))
                continue
            found.append(self.chance.choice([
                self.case.path(folder), f"$ORIGIN/{up}", f"${{ORIGIN}}/{up}/", self.case.path(folder) + "/",
                f"$ORIGIN/{up}/../{Path(folder).name}", "missing", folder, f"{self.case.path('')}$LIB",
                f"{self.case.path('')}$PLATFORM",
            ]))  # fmt: skip
        if self.chance.random() < 0.1:
            found.insert(self.chance.randrange(len(found)), "")
        return ":".join(found)

    def _path_options(self, folder: str) -> list[str]:
        kind = self.chance.choice(["none", "rpath", "runpath", "rpath", "runpath"])
        if kind == "none":
            return []
        tags = "--disable-new-dtags" if kind == "rpath" else "--enable-new-dtags"
        path = self._paths(folder)
        self.case.notes.append(f"{folder} {kind} {path}")
        return [f"-Wl,{tags}", "-Wl,-rpath," + path] if "," not in path else []

    def _library(self, name: str) -> None:
        """Write one or two copies; the second may lack a symbol or a version of it."""
        copies = self.copies[name] = self.chance.sample(self.folders, self.chance.choice([1, 2, 3, 3]))
        for number, folder in enumerate(copies):
            old = number > 0 and self.chance.random() < 0.5
            self._copy(name, folder, old)
        self._first(name, copies[0])

    def _first(self, name: str, folder: str) -> None:
        """Keep the complete copy for those that link against it."""
        keep = self.case.folder / ".link"
        keep.mkdir(exist_ok=True)
        shutil.copy(self.case.folder / folder / f"lib{name}.so", keep / f"lib{name}.so")

    def _copy(self, name: str, folder: str, old: bool) -> None:
        calls = [f"call_{other}" for other in self.needs[name]]
        calls += [f"late_{other}" for other in self.needs[name] if self.chance.random() < 0.4]
        strays = [f"call_{other}" for other in self.names if self.chance.random() < 0.06 and other != name]
        declared = "".join(f"int {call}(void);" for call in {*calls, *strays})
        if self.chance.random() < 0.2:
            declared += "int __attribute__((weak)) not_there(void);"
            calls.append("0; if (not_there) not_there")
        body = "".join(f"{call}();" for call in [*calls, *strays])
        source = f"#include <stddef.h>\nvoid *dlopen(const char *, int); {declared}"
        source += f"int call_{name}(void) {{ return 1; }} int uses_{name}(void) {{ {body} return 0; }}"
        source += "void *open_from_here(const char *name, int flags) { return dlopen(name, flags) + 0; }"
        if not old:
            source += f"int late_{name}(void) {{ return 2; }}"
        options = ["-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,-z,lazy", *self._path_options(folder)]
        soname = self.sonames[name]
        if soname:
            options.append(f"-Wl,-soname,{soname}")
        if name in self.versioned:
            script = self.case.folder / f".link/{name}{int(old)}.map"
            script.parent.mkdir(exist_ok=True)
            late = "" if old else f"V2_{name} {{ late_{name}; }} V1_{name};"
            script.write_text(f"V1_{name} {{ global: *; local: nothing; }}; {late.replace('{', '{ global:')}\n")
            options.append(f"-Wl,--version-script={script}")
        if self.chance.random() < 0.06:
            options.append("-Wl,-z,nodefaultlib")
        if self.chance.random() < 0.2:
            options.append("-Wl,--hash-style=" + self.chance.choice(["sysv", "gnu", "both"]))
        options += ["-L", str(self.case.folder / ".link"), *(f"-l:lib{other}.so" for other in self.needs[name])]
        target = self.case.folder / folder / f"lib{name}.so"
        if self.chance.random() < 0.12:
            level = self.chance.choice([
                "glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v4",
                "glibc-hwcaps/x86-64-v5", "haswell", "tls/x86_64", "x86_64",
            ])  # fmt: skip
            compile_c(source, target.parent / level / target.name, *options)
        compile_c(source, target, *options)
        if soname and soname != target.name:
            link = target.with_name(soname)
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)

    def _program(self) -> None:
        linked = [name for name in self.names if self.chance.random() < 0.05]
        options = ["-Wl,--no-as-needed", "-Wl,-z,lazy", "-Wl,--allow-shlib-undefined", *self._path_options("bin")]
        options += ["-L", str(self.case.folder / ".link"), *(f"-l:lib{name}.so" for name in linked)]
        compile_c(_HOST, self.case.folder / "bin/host", *options)

    def _disturb(self) -> None:
        """Remove, damage, or link some files."""
        files = sorted(self.case.folder.glob("**/lib?.so"))
        for path in files:
            if ".link" in path.parts or path.is_symlink():
                continue
            kind = self.chance.choice(
                ["keep"] * 32 + ["gone", "cut", "empty", "text", "machine", "class", "away", "dir"]
            )
            data = path.read_bytes()
            if kind in ("gone", "dir", "away"):
                path.unlink()
            if kind == "dir":
                path.mkdir()
            elif kind == "away":  # $ORIGIN of a link is the folder of the link
                away = self.case.folder / f"away/{path.parent.name}-{path.name}"
                away.parent.mkdir(exist_ok=True)
                away.write_bytes(data)
                path.symlink_to(os.path.relpath(away, path.parent))
            elif kind in ("cut", "empty", "text"):
                path.write_bytes({"cut": data[: len(data) // 3], "empty": b"", "text": b"/* ld script */\n" * 20}[kind])
            elif kind == "machine":
                path.write_bytes(data[:18] + (183).to_bytes(2, "little") + data[20:])
            elif kind == "class":
                path.write_bytes(data[:4] + b"\x01" + data[5:])
            if kind != "keep":
                self.case.notes.append(f"{path.relative_to(self.case.folder)} {kind}")
        if self.chance.random() < 0.3:  # a linked folder: `..` leaves it by its real parent
            place = self.case.folder / "other/linked"
            place.parent.mkdir()
            place.symlink_to(os.path.relpath(self.case.folder / self.folders[0], place.parent))
            self.folders.append("other/linked")

    def _variables(self) -> None:
        if self.chance.random() < 0.6:
            parts = [
                self.chance.choice([self.case.path(folder), folder, self.case.path(folder) + "/"])
                for folder in self.chance.sample(self.folders, self.chance.randint(1, 3))
            ]
            if self.chance.random() < 0.15:
                parts.insert(
                    self.chance.randrange(len(parts) + 1), self.chance.choice(["", "/nowhere", "$ORIGIN/../d0"])
                )
            self.case.environ["LD_LIBRARY_PATH"] = self.chance.choice([":", ":", ";"]).join(parts)
        if self.chance.random() < 0.2:
            name = self.chance.choice(self.names)
            place = self.chance.choice(self.copies[name])
            self.case.environ["LD_PRELOAD"] = self.chance.choice(
                [self.case.path(f"{place}/lib{name}.so"), f"lib{name}.so", f"{place}/lib{name}.so libnone.so"]
            )

    def _opens(self) -> None:
        for number in range(self.chance.randint(2, 4)):
            name = self.chance.choice(self.names)
            place = self.chance.choice(self.copies[name] * 3 + self.folders)
            soname = self.sonames[name] or f"lib{name}.so"
            target = self.chance.choice(
                [self.case.path(f"{place}/lib{name}.so"), soname, f"lib{name}.so", f"{place}/lib{name}.so"]
            )
            caller = self.chance.choice("---" + "".join(str(before) for before in range(number)))
            self.case.opens.append(caller + self.chance.choice("lg") + target)

    def _system(self) -> None:
        """Give the folder a C library, a loader, and a cache of ldconfig."""
        root = self.case.folder
        for source in ("/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6"):
            target = root / ("lib64" if "ld-" in source else "usr/lib/x86_64-linux-gnu") / Path(source).name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        (root / "etc").mkdir()
        (root / "etc/ld.so.conf").write_text("/opt/listed\n/usr/lib/x86_64-linux-gnu\n/d1\n")
        if self.chance.random() < 0.7:
            subprocess.run(["/sbin/ldconfig", "-X", "-r", str(root)], check=True, capture_output=True)


class Rooted(Disk):
    """The files of a `chroot`."""

    def __init__(self, root: Path) -> None:
        super().__init__(cache_file=f"{root}/etc/ld.so.cache")
        self.root = str(root)

    def _inside(self, path: str) -> str:
        return self.root + os.path.join("/", path)  # noqa: PTH118

    def summary(self, path: str) -> Summary | Damaged | None:
        """Return what the loader reads of a file."""
        return super().summary(self._inside(path))

    def identity(self, path: str) -> str:
        """Return the path without links, as it is inside."""
        return os.path.realpath(self._inside(path)).removeprefix(self.root)

    def is_folder(self, path: str) -> bool:
        """Return whether there is such a folder."""
        return super().is_folder(self._inside(path))


class RootedBinder(SymbolBinder):
    """Opens the files of a `chroot`."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)

    def _elf(self, path: str):  # type: ignore[no-untyped-def]
        return super()._elf(self.root + path)


def real_steps(case: Case) -> list[Step] | None:
    """Return what the program loads; None where it does not start."""
    environ = {"PATH": os.environ["PATH"], **case.environ}
    command = [case.path("bin/host"), *case.opens]
    if case.rooted:
        words = "\n".join(f"{name}={value}" for name, value in case.environ.items())
        command = [sys.executable, "-c", _ENTER, str(case.folder), *command]
        environ = {"WORDS": words}  # variables of the loader must not reach this interpreter
    done = subprocess.run(command, env=environ, cwd=case.folder, capture_output=True, text=True, check=False)
    if done.returncode > 0:
        return None
    steps: list[tuple[str, list[str]]] = []
    for line in done.stdout.splitlines():
        if not line.startswith("  "):
            steps.append((line, []))
        elif line.strip() and "vdso" not in line:
            steps[-1][1].append(line.strip())
    if done.returncode < 0 and steps:  # a truncated file ends the process by SIGBUS
        steps.append(("file too short", []))
    return [(kind_of(text), tuple(without_links(case, path) for path in paths)) for text, paths in steps]


def without_links(case: Case, path: str) -> str:
    """Return the file behind a name that the program printed."""
    root = str(case.folder) if case.rooted else ""
    return os.path.realpath(root + os.path.join("/" if case.rooted else str(case.folder), path)).removeprefix(root)  # noqa: PTH118


def kind_of(text: str) -> str:
    """Return `ok`, or the kind of a failure with what is missing, from a message of the loader."""
    if text in ("start", "ok", "skipped"):
        return text
    for kind, pattern in _MESSAGES:
        if match := re.search(pattern, text):
            exact = kind in (FailureKind.UNDEFINED_SYMBOL, FailureKind.SYMBOL_VERSION)
            return f"{kind}: {match[1]}" if exact else str(kind)
    return text


def predicted_steps(case: Case) -> list[Step] | None:
    """Return what the model loads; None where it predicts that the program does not start."""
    files = Rooted(case.folder) if case.rooted else Disk()
    binder = RootedBinder(case.folder) if case.rooted else SymbolBinder()
    process = Process(files, case.environ)
    if process.start(case.path("bin/host")) is not None:
        return None
    steps = [("start", loaded(process))]
    handles: list[Loaded | None] = []
    for word in case.opens:
        caller, name = None, word[2:]
        if word[0] != "-":
            caller = handles[int(word[0])]
            if caller is None:
                handles.append(None)
                steps.append(("skipped", ()))
                continue
        found = process.dlopen(name, caller=caller or process.program, make_global=word[1] == "g", binder=binder)
        handles.append(None if isinstance(found, Failure) else found)
        steps.append(("ok" if handles[-1] else words_of(found), loaded(process)))
    binder.close()
    return steps


def words_of(found: Failure | Loaded) -> str:
    """Return a predicted failure in the form of `kind_of`; all missing symbols, as the loader reports only one."""
    assert isinstance(found, Failure)
    if found.kind in (FailureKind.UNDEFINED_SYMBOL, FailureKind.SYMBOL_VERSION):
        return f"{found.kind}: {' '.join(found.missing)}"
    return str(found.kind)


def loaded(process: Process) -> tuple[str, ...]:
    """Return the files without links, the program left out."""
    return tuple(
        one.identity for one in process.loaded if one is not process.program and "/ld-linux" not in one.identity
    )


def differences(case: Case) -> list[str]:
    """Return how prediction and reality differ; empty where they agree."""
    before = Path.cwd()
    os.chdir("/" if case.rooted else case.folder)
    try:
        predicted, real = predicted_steps(case), real_steps(case)
    finally:
        os.chdir(before)
    if real == []:
        return []  # a truncated library that is preloaded ends the process at once
    if predicted is None or real is None:
        return [] if predicted is real else [f"start: predicted {predicted is not None}, real {real is not None}"]
    found = []
    for number, (mine, truth) in enumerate(zip(predicted, real, strict=False)):  # real ones end at a crash
        kind, _, missing = truth[0].partition(": ")
        same = _EQUAL.get(mine[0], mine[0]).partition(": ")[0] == _EQUAL.get(kind, kind) and (
            not missing or missing in mine[0].split()
        )
        if not same:
            found.append(f"step {number}: predicted {mine[0]}, real {truth[0]}")
        elif truth[1] and sorted(mine[1]) != sorted(one for one in truth[1] if "/ld-linux" not in one):
            found.append(f"step {number}: predicted {mine[1]}, real {truth[1]}")
    return found


def made(seed: int, folder: Path, *, rooted: bool = False) -> Case:
    """Return the environment of a seed, written into an empty folder."""
    case = Case(folder.resolve(), seed, rooted)
    Generator(case).run()
    return case


def outcome_of(case: Case) -> str:
    """Return what really happens, in a word, for the count."""
    real = real_steps(case)
    if not real:
        return "does not start"
    kinds = [text.partition(":")[0] for text, _ in real[1:] if text not in ("ok", "skipped")]
    return kinds[0] if kinds else "all load"


def main() -> int:
    """Print how many environments agree, and those that do not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooted", action="store_true")
    parser.add_argument("--show", action="store_true", help="print the environment of each that differs")
    options = parser.parse_args()
    wrong, steps = 0, 0
    outcomes: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        with tempfile.TemporaryDirectory() as folder:
            case = made(seed, Path(folder), rooted=options.rooted)
            found = differences(case)
            outcomes[outcome_of(case)] += 1
            steps += len(case.opens)
            wrong += bool(found)
            if found:
                print(f"seed {seed}:", *found, sep="\n  ")
                if options.show:
                    print(f"  {case.environ} {case.opens}", *case.notes, sep="\n    ")
    print(f"{options.count - wrong} of {options.count} environments agree ({steps} calls of dlopen): {dict(outcomes)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
