"""uv.lock, poetry.lock, pylock.toml: what a resolver chose, with the line of each version."""

# ruff: noqa: E501 - files to read, each on one line

import time

import pytest

from doctor.errors import DoctorError

UV = """version = 1
requires-python = ">=3.11"

[[package]]
name = "trainer"
version = "0.1.0"
source = { virtual = "." }
dependencies = [{ name = "torch" }]

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://download.pytorch.org/whl/cu126" }

[[package]]
name = "flash_attn"
version = "2.7.4.post1"
source = { registry = "https://registry.example/simple" }
"""

POETRY = """[[package]]
name = "torch"
version = "2.6.0+cu124"
optional = false
python-versions = ">=3.9.0"

[package.source]
type = "legacy"
url = "https://download.pytorch.org/whl/cu124"

[[package]]
name = "xformers"
version = "0.0.29"
optional = true

[[package]]
name = "pywin32"
version = "306"
optional = false
markers = "sys_platform == \\"win32\\""

[[package]]
name = "flash-attn"
version = "2.7.3"
optional = false
markers = {main = "sys_platform == \\"linux\\"", dev = "sys_platform == \\"win32\\""}

[metadata]
lock-version = "2.1"
python-versions = ">=3.10,<3.13"
content-hash = "00"
"""

PYLOCK = """lock-version = "1.0"
created-by = "pip"
requires-python = ">=3.11"

[[packages]]
name = "torch"
version = "2.6.0"
marker = "sys_platform == 'linux'"

[[packages]]
name = "colorama"
version = "0.4.6"
marker = "sys_platform == 'win32'"

[[packages]]
name = "flash-attn"
vcs = { type = "git", url = "https://example.org/x", commit-id = "abc" }

[[packages]]
name = "pytest"
version = "8.0.0"
marker = "'dev' in dependency_groups"
"""


def test_uv(read, values):
    declaration = read({"uv.lock": UV})
    found = values(declaration)
    assert found["torch.version"] == "2.6.0"
    assert found["torch.cuda"] == "12.6"  # the registry of that package
    assert found["flash-attn.version"] == "2.7.4.post1"
    assert "trainer.version" not in found
    assert declaration.facts["torch.version"].source.endswith("uv.lock:12")
    assert found["distributions.complete"] is True


def test_a_uv_lock_names_what_the_project_overrides(read):
    assert "declared.overridden" not in read({"uv.lock": UV}).facts
    table = '[manifest]\noverrides = [{ name = "Torch", specifier = "==2.6.0" }, 7, { specifier = "==1" }]\n\n'
    declaration = read({"uv.lock": UV.replace("[[package]]", table + "[[package]]", 1)})
    assert declaration.facts.value("declared.overridden") == ("torch",)


def test_of_several_versions_the_markers_decide(read, values):
    text = """version = 1
requires-python = ">=3.11"
[[package]]
name = "torch"
version = "2.2.2"
resolution-markers = ["sys_platform == 'darwin'"]
[[package]]
name = "torch"
version = "2.6.0"
resolution-markers = ["platform_machine == 'aarch64' and sys_platform == 'linux'", "sys_platform == 'linux'"]
"""
    assert values(read({"uv.lock": text}))["torch.version"] == "2.6.0"


def test_versions_of_which_extras_decide_are_left_open(read):
    text = """version = 1
[[package]]
name = "torch"
version = "2.6.0+cpu"
[[package]]
name = "torch"
version = "2.6.0+cu124"
"""
    declaration = read({"uv.lock": text})
    fact = declaration.facts["torch.version"]
    assert fact.value is None
    assert "2.6.0+cpu" in fact.problem and "2.6.0+cu124" in fact.problem
    assert declaration.facts.value("distributions.complete") is None


def test_poetry(read, values):
    found = values(read({"poetry.lock": POETRY}))
    assert found["torch.version"] == "2.6.0+cu124"
    assert "xformers.version" not in found  # only on request
    assert found["pywin32.version"] == "absent"
    assert found["flash-attn.version"] == "2.7.3"  # of one group or the other


def test_pylock(read, values):
    declaration = read({"pylock.ci.toml": PYLOCK})
    found = values(declaration)
    assert found["torch.version"] == "2.6.0"
    assert declaration.facts["torch.version"].source.endswith("pylock.ci.toml:7")
    assert found["colorama.version"] == "absent"
    assert declaration.facts["flash-attn.version"].value is None
    assert "no version" in declaration.facts["flash-attn.version"].problem


@pytest.mark.parametrize(
    ("name", "text", "place", "why"),
    [
        ("uv.lock", UV[:-30], "uv.lock:18", "not TOML"),
        ("uv.lock", "version = 1\n", "uv.lock", "nothing is locked"),
        ("uv.lock", "package = 3\n", "uv.lock", "needs to be tables"),
        ("uv.lock", "[[package]]\nname = 'x'\nversion = 'oops'\n", "uv.lock:3", "not a version"),
        ("uv.lock", "[[package]]\nversion = '1'\n", "uv.lock:2", "no `name`"),
        ("uv.lock", "[[package]]\nname = 'x'\nversion = 1\n", "uv.lock:3", "needs a text"),
        ("uv.lock", "[[package]]\nname = 'x'\nname = 'y'\n", "uv.lock:3", "not TOML"),
        ("poetry.lock", "\n\n=", "poetry.lock:3", "not TOML"),
        ("pylock.toml", "lock-version = '2.0'\n", "pylock.toml", "needs 1.x"),
        ("pylock.toml", "[[packages]]\nname = 'x'\n", "pylock.toml", "needs 1.x"),
        ("other.lock", "{}", None, "unknown file format"),
        ("package.json", "{}", None, "unknown file format"),
    ],
)  # fmt: skip
def test_bad_input_names_file_line_and_reason(name, text, place, why, read):
    with pytest.raises(DoctorError) as caught:
        read({name: text})
    assert why in caught.value.message
    if place:
        assert f"/{place}: " in caught.value.message


@pytest.mark.parametrize("name", ["uv.lock", "poetry.lock"])
def test_a_lock_of_a_hundred_thousand_lines(name, read, values):
    text = "".join(f'[[package]]\nname = "p{n}"\nversion = "1.{n}"\noptional = false\n\n' for n in range(20_000))
    began = time.process_time()
    found = values(read({name: text + '[[package]]\nname = "torch"\nversion = "2.6.0"\n'}))
    assert time.process_time() - began < 30
    assert found["torch.version"] == "2.6.0"


#: As uv writes it: torch's wheels for CUDA are reached on x86_64 Linux only, pywin32 on Windows only.
FORKS = """\
version = 1
requires-python = ">=3.11"

[[package]]
name = "train"
version = "0"
source = { virtual = "." }
dependencies = [
    { name = "torch" },
    { name = "portalocker" },
]

[package.optional-dependencies]
serve = [{ name = "vllm", extra = ["audio"] }]

[[package]]
name = "torch"
version = "2.6.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [
    { name = "nvidia-cudnn-cu12", marker = "platform_machine == 'x86_64' and sys_platform == 'linux'" },
    { name = "triton", version = "3.2.0", marker = "sys_platform == 'linux'" },
]

[[package]]
name = "nvidia-cudnn-cu12"
version = "9.1.0.70"
dependencies = [{ name = "nvidia-cublas-cu12" }]

[[package]]
name = "nvidia-cublas-cu12"
version = "12.4.5.8"

[[package]]
name = "triton"
version = "3.2.0"

[[package]]
name = "portalocker"
version = "3.1.1"
dependencies = [{ name = "pywin32", marker = "sys_platform == 'win32'" }]

[[package]]
name = "pywin32"
version = "310"

[[package]]
name = "vllm"
version = "0.8.5"
[package.optional-dependencies]
audio = [{ name = "librosa" }]

[[package]]
name = "librosa"
version = "0.11.0"

[[package]]
name = "orphan"
version = "1.0"
"""


def test_packages_of_another_platform_in_a_uv_lock_are_not_installed(read, values):
    found = values(read({"uv.lock": FORKS}))
    assert found["nvidia-cudnn-cu12.version"] == "9.1.0.70" and found["nvidia-cublas-cu12.version"] == "12.4.5.8"
    assert found["triton.version"] == "3.2.0" and found["pywin32.version"] == "absent"
    assert found["vllm.version"] == "0.8.5" and found["librosa.version"] == "0.11.0"  # every extra counts
    assert found["orphan.version"] == "1.0"  # reached from nowhere: it counts


def test_wheels_that_a_uv_lock_reaches_only_on_another_machine_are_not_installed(read, values):
    found = values(read({"uv.lock": FORKS}, platform_machine="aarch64"))
    assert found["nvidia-cudnn-cu12.version"] == "absent"
    assert found["nvidia-cublas-cu12.version"] == "absent"  # reached only over it
    assert found["torch.version"] == "2.6.0" and found["triton.version"] == "3.2.0"


def test_a_package_of_a_uv_lock_that_any_way_reaches_is_installed(read, values):
    more = FORKS.replace('{ name = "portalocker" },', '{ name = "portalocker" },\n    { name = "pywin32" },')
    assert values(read({"uv.lock": more}))["pywin32.version"] == "310"


def test_markers_of_conflicting_extras_in_a_uv_lock_hide_no_package(read, values):
    conflict = FORKS.replace("marker = \"sys_platform == 'win32'\"", "marker = \"extra == 'extra-5-train-cpu'\"")
    assert values(read({"uv.lock": conflict}))["pywin32.version"] == "310"


CONFLICTS = """version = 1
revision = 3
requires-python = ">=3.12"
conflicts = [[
    { package = "train", extra = "cpu" },
    { package = "train", extra = "cu128" },
], [
    { package = "train", group = "serve" },
    { package = "train", group = "sglang" },
]]

[[package]]
name = "train"
version = "0.1.0"
source = { virtual = "." }

[package.optional-dependencies]
cpu = [{ name = "torch", version = "2.7.0", marker = "extra == 'extra-5-train-cpu'" }]
cu128 = [{ name = "torch", version = "2.7.0+cu128", marker = "extra == 'extra-5-train-cu128'" }]

[package.dev-dependencies]
serve = [{ name = "vllm" }]
sglang = [{ name = "sglang" }, { name = "flash-attn-4" }]

[[package]]
name = "torch"
version = "2.7.0"
resolution-markers = ["extra == 'extra-5-train-cpu' and extra != 'extra-5-train-cu128'"]

[[package]]
name = "torch"
version = "2.7.0+cu128"
resolution-markers = ["extra != 'extra-5-train-cpu' and extra == 'extra-5-train-cu128'"]
dependencies = [
    { name = "triton", marker = "sys_platform == 'linux' or (extra == 'group-5-train-serve' and extra == 'group-5-train-sglang')" },
    { name = "flash-attn-4", marker = "extra == 'group-5-train-sglang'" },
]

[[package]]
name = "triton"
version = "3.3.0"

[[package]]
name = "vllm"
version = "0.9.0"

[[package]]
name = "sglang"
version = "0.5.9"

[[package]]
name = "flash-attn-4"
version = "4.0.0b8"
"""


def test_of_extras_that_conflict_in_a_uv_lock_one_counts(read, values):
    declaration = read({"uv.lock": CONFLICTS})
    found = values(declaration)
    assert found["torch.version"] == "2.7.0+cu128"  # a build for CUDA before one without
    assert found["triton.version"] == "3.3.0" and found["vllm.version"] == "0.9.0"
    assert found["sglang.version"] == "absent" and found["flash-attn-4.version"] == "absent"
    assert any("checked with `cu128`, `serve`; not checked: `cpu`, `sglang`" in note for note in declaration.notes)


def test_a_marker_with_an_extra_that_the_lock_does_not_name_is_no_condition(read, values):
    unknown = CONFLICTS.replace("extra == 'group-5-train-sglang'\" },\n]", "extra == 'extra-5-other-x'\" },\n]")
    assert values(read({"uv.lock": unknown}))["flash-attn-4.version"] == "4.0.0b8"


def test_the_first_of_many_extras_that_conflict_counts(read, values):
    names = [f"e{number}" for number in range(12)]
    members = "\n".join(f'    {{ package = "train", extra = "{name}" }},' for name in names)
    extras = "\n".join(f'{name} = [{{ name = "pkg-{name}" }}]' for name in names)
    packages = "".join(f'\n[[package]]\nname = "pkg-{name}"\nversion = "1.0"\n' for name in names)
    text = f"""version = 1
conflicts = [[
{members}
]]

[[package]]
name = "train"
version = "0.1.0"
source = {{ virtual = "." }}

[package.optional-dependencies]
{extras}
{packages}"""
    found = values(read({"uv.lock": text}))
    assert [name for name in names if found[f"pkg-{name}.version"] == "1.0"] == ["e0"]


@pytest.mark.parametrize(
    ("file", "where"),
    [
        ("uv.lock", 'source = {{ git = "https://h.example/mamba.git?{asked}#0123abc" }}'),
        ("poetry.lock", '[package.source]\ntype = "git"\nurl = "https://h.example/mamba.git"\nreference = "{asked}"'),
        ("pylock.toml", 'vcs = {{ type = "git", url = "https://h.example/m", requested-revision = "{asked}" }}'),
        ("pdm.lock", 'git = "https://h.example/mamba.git"\nref = "{asked}"'),
    ],
)
@pytest.mark.parametrize(
    ("asked", "version", "found"),
    [
        ("rev=0123abc", "2.2.6.post3", None),  # a commit after that release still has its number
        ("tag=v2.2.6", "2.2.6", "2.2.6"),
        ("rev=0123abc", "2.2.7.dev3", "2.2.7.dev3"),
    ],
)
def test_a_commit_is_no_release(read, values, file, where, asked, version, found):
    head = {"pylock.toml": 'lock-version = "1.0"\n', "pdm.lock": '[metadata]\nlock_version = "4.5"\n'}.get(
        file, "version = 1\n"
    )
    section = "packages" if file == "pylock.toml" else "package"
    text = f'{head}\n[[{section}]]\nname = "mamba-ssm"\nversion = "{version}"\n' + where.format(asked=asked) + "\n"
    declaration = read({file: text})
    assert values(declaration).get("mamba-ssm.version") == found
    if found is None:
        assert "a commit of `https://h.example/m" in str(declaration.facts["mamba-ssm.version"].problem)
