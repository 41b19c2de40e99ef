"""What a build needs, by its files alone: where a set-up script stops, and what it passes to the compiler."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from doctor.packages.source_build import SourceBuild
from doctor.sources.builds.project import read_build, stop_of
from doctor.sources.builds.scenario import Scenario

PYPROJECT = '[build-system]\nrequires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"\n'
KERNELS = """
import os, subprocess, sys
from packaging.version import parse, Version
import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CUDAExtension, CUDA_HOME
FORCE = os.getenv("KERNELS_FORCE_BUILD", "FALSE") == "TRUE"
SKIP = os.getenv("KERNELS_SKIP_CUDA_BUILD", "FALSE") == "TRUE"
def nvcc_release(home):
    words = subprocess.check_output([home + "/bin/nvcc", "-V"], universal_newlines=True).split()
    return parse(words[words.index("release") + 1].split(",")[0])
flags = []
modules = []
if not SKIP:
    release = nvcc_release(CUDA_HOME)
    flags += ["-gencode", "arch=compute_80,code=sm_80"]
    if release >= Version("12.8"):
        flags.append("-gencode")
        flags.append("arch=compute_120,code=sm_120")
    modules.append(CUDAExtension("k", ["k.cu"], extra_compile_args={"cxx": ["-std=c++17"], "nvcc": flags}))
def get_wheel_url():
    cuda = parse(torch.version.cuda)
    cuda = parse("11.8") if cuda.major == 11 else parse("12.3")
    torch_release = parse(torch.__version__)
    return f"kernels-1.0+cu{cuda.major}torch{torch_release.major}.{torch_release.minor}-cp3.whl", "url"
setup(name="kernels", ext_modules=modules, cmdclass={"build_ext": BuildExtension})
"""


def build_of(files: Mapping[str, str]) -> SourceBuild:
    found = read_build(files.get)
    assert found is not None
    return found


def test_a_script_that_names_its_architectures_is_read_for_each_compiler() -> None:
    found = build_of({"setup.py": KERNELS, "pyproject.toml": PYPROJECT})
    assert found.archs == {"11.8": ("8.0",), "12.8": ("8.0", "12.0")}
    assert (found.archs_with("12.4"), found.archs_with("13.2")) == (("8.0",), ("8.0", "12.0"))
    assert found.standard == "17" and found.compiles_cuda


def test_the_wheel_that_a_build_downloads_is_named_by_its_own_function() -> None:
    found = build_of({"setup.py": KERNELS, "pyproject.toml": PYPROJECT})
    assert found.wheels == {"11": "11", "12": "12", "13": "12"}
    assert (found.force_build, found.skip_cuda) == ("KERNELS_FORCE_BUILD", "KERNELS_SKIP_CUDA_BUILD")


def test_an_isolated_build_has_what_is_declared_and_nothing_else() -> None:
    declared = PYPROJECT.replace('"wheel"', '"wheel", "packaging", "torch"')
    assert build_of({"setup.py": KERNELS, "pyproject.toml": PYPROJECT}).isolated.endswith("No module named 'torch'")
    assert build_of({"setup.py": KERNELS, "pyproject.toml": declared}).isolated == ""


def test_a_compiler_that_is_missing_is_named() -> None:
    found = build_of({"setup.py": KERNELS, "pyproject.toml": PYPROJECT})
    assert found.without_nvcc.startswith("TypeError")
    assert found.without_gpu == ""


STOPS = {  # script -> how it stops without torch
    "import torch": "ModuleNotFoundError",
    "try:\n    import torch\nexcept ImportError:\n    torch = None": None,
    "try:\n    import torch\nexcept ImportError as e:\n    raise RuntimeError('needs torch') from e": "RuntimeError",
    "try:\n    import torch\nexcept Exception:\n    import sys\n    sys.exit(1)": "SystemExit",
    "def modules():\n    import torch\n    return []\nsetup = dict": None,
    "def modules():\n    import torch\n    return []\nx = modules()": "ModuleNotFoundError",
    "import os\nif os.getenv('WITH_CUDA', '0') == '1':\n    import torch": None,
    "import os\nif os.path.exists('csrc'):\n    import torch": None,
    "class Build:\n    def run(self):\n        import torch": None,
    "from helpers import modules": "ModuleNotFoundError",
    "from own import modules": "RuntimeError",
    "import os\nvalue = os.environ['NEEDED']": "KeyError",
    "import packaging.version, wheel": None,
    "import pkg_resources": "ModuleNotFoundError",
    "exec(open('v.py').read())\nprint(version)": None,
    "for name in ['torch']:\n    __import__(name)": None,
    "while unknown():\n    import torch": None,
    "if True:\n    x = 1\nelse:\n    y = 2\nprint(y)": "NameError",
}


@pytest.mark.parametrize("script", STOPS)
def test_where_a_script_stops(script: str) -> None:
    files = {"setup.py": script, "own.py": "raise RuntimeError('of the project')"}
    stop = stop_of(files.get, Scenario())
    assert (None if stop is None else stop.kind) == STOPS[script]


def test_a_backend_that_is_not_the_legacy_one_does_not_see_the_projects_modules() -> None:
    files = {"setup.py": "from own import modules", "own.py": "modules = []", "pyproject.toml": PYPROJECT}
    stop = stop_of(files.get, Scenario())
    assert stop is not None and stop.kind == "ModuleNotFoundError"
    assert (
        stop_of({**files, "setup.py": "import sys\nsys.path.insert(0, '.')\nfrom own import modules"}.get, Scenario())
        is None
    )


@pytest.mark.parametrize(
    "script",
    [
        "x = " + "(" * 90 + "1" + ")" * 90,
        "def f(n):\n    return f(n)\nf(1)",
        "while True:\n    pass",
        "x = 'a' * 10**9",
        "x = [1] * 10**8",
        "x = 'a' * 4000000000",
        "x = list(range(4000000000))",
        "x = '%4000000000d' % 1",
        "x = '{:4000000000}'.format(1)",
        "x = 10 ** 10 ** 10",
        "for a in range(10**9):\n    pass",
        "\n".join(f"def f{n}(): return f{n + 1}() + f{n + 1}()" for n in range(40)) + "\nf0()",
    ],
)
def test_a_script_that_would_run_for_long_is_left_open(script: str) -> None:
    assert stop_of({"setup.py": script}.get, Scenario()) is None
