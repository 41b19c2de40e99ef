"""pyproject.toml beyond `[project]`, Pipfile and pixi.toml: groups, sources, overrides, and where each is."""

# ruff: noqa: E501 - files to read, each on one line

import pytest

from doctor.errors import DoctorError
from doctor.sources.manifests.formats.poetry_project import pep440

HEAD = '[project]\nname = "x"\ndependencies = ["torch>=2.4", "numpy"]\n'


@pytest.fixture
def project(read, tmp_path):
    def project(text, chosen="", name="pyproject.toml", **files):
        read({name: text, **files}, [name])
        return read({name: text, **files}, [f"{name}{chosen}"])

    return project


def told(declaration, key):
    fact = declaration.facts[key]
    return fact.value, int(fact.source.rpartition(":")[2])


def test_groups_that_uv_installs_unasked(project):
    text = (
        HEAD + "[dependency-groups]\n"
        'te = ["transformer-engine==1.13.0"]\n'
        'dev = [\n  {include-group = "te"},\n  "flash-attn==2.7.3",\n]\n'
        'serve = ["vllm==0.6.3"]\n'
    )
    found = project(text)
    assert told(found, "transformer-engine.version") == ("1.13.0", 5)
    assert told(found, "flash-attn.version") == ("2.7.3", 8)
    assert "vllm.version" not in found.facts
    assert "groups: serve (" in found.notes[0]
    assert project(text, "[serve]").facts.value("vllm.version") == "0.6.3"
    assert project(text, "[*]").facts.value("vllm.version") == "0.6.3"


def test_default_groups(project):
    text = HEAD + '[dependency-groups]\na = ["xformers==0.0.29"]\ndev = ["flash-attn==2.7.3"]\n'
    found = project(text + '[tool.uv]\ndefault-groups = ["a"]\n')
    assert found.facts.value("xformers.version") == "0.0.29" and "flash-attn.version" not in found.facts


def test_extras_are_read_where_nothing_else_speaks(project):
    text = (
        '[project]\ndependencies = ["numpy"]\n[project.optional-dependencies]\n'
        'gpu = ["torch==2.6.0+cu124", "flash-attn==2.7.3"]\ncpu = ["torch==2.6.0+cpu"]\n'
    )
    found = project(text)
    assert found.facts["torch.version"].value is None and "extras and groups" in found.facts["torch.version"].problem
    assert told(found, "flash-attn.version") == ("2.7.3", 4)
    assert "every extra and group was read" in found.notes[0]
    assert told(project(text, "[gpu]"), "torch.version") == ("2.6.0+cu124", 4)


def test_uv_overrides_constraints_and_sources(project):
    found = project(
        HEAD + "[tool.uv]\n"
        'override-dependencies = [\n  "torch==2.6.0",\n]\n'
        'constraint-dependencies = ["xformers==0.0.29", "numpy==1.26.4"]\n'
        '[tool.uv.sources]\ntorch = [\n  { index = "cu126", marker = "sys_platform == \'linux\'" },\n'
        '  { index = "cpu", marker = "sys_platform == \'darwin\'" },\n]\n'
        '[[tool.uv.index]]\nname = "cu126"\nurl = "https://download.pytorch.org/whl/cu126"\nexplicit = true\n'
        '[[tool.uv.index]]\nname = "cpu"\nurl = "https://download.pytorch.org/whl/cpu"\n'
    )
    assert told(found, "torch.version") == ("2.6.0", 6)
    assert told(found, "torch.cuda") == ("12.6", 10)
    assert found.facts.value("numpy.version") == "1.26.4"
    assert "xformers.version" not in found.facts


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ('{ url = "https://x.org/flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl" }',
         "2.7.4.post1+cu12torch2.6cxx11abiFALSE"),
        ('{ git = "https://github.com/Dao-AILab/flash-attention", tag = "v2.6.3" }', "2.6.3"),
        ('{ git = "https://github.com/Dao-AILab/flash-attention", rev = "0123abc" }', None),
        ('{ path = "vendor/flash" }', None),
        ("{ workspace = true }", None),
    ],
)  # fmt: skip
def test_packages_that_come_from_elsewhere(source, version, project):
    text = f'[project]\ndependencies = ["flash-attn", "torch==2.6.0"]\n[tool.uv.sources]\nflash-attn = {source}\n'
    fact = project(text).facts["flash-attn.version"]
    assert fact.value == version and (version or fact.problem)


@pytest.mark.parametrize(
    ("written", "ranges"),
    [
        ("^2.4", ">=2.4,<3"), ("^0.4.1", ">=0.4.1,<0.5"), ("~2.4", ">=2.4,<2.5"), ("~2.4.1", ">=2.4.1,<2.5"),
        ("2.4.*", "==2.4.*"), (">=2.4,<2.7", ">=2.4,<2.7"), ("*", ""), ("~2", ">=2,<3"), (">=2.4 <2.7", ">=2.4,<2.7"),
    ],
)  # fmt: skip
def test_ranges_of_poetry(written, ranges):
    assert pep440(written) == ranges


def test_tables_of_poetry(project):
    found = project(
        "[tool.poetry]\nname = 'x'\n[tool.poetry.dependencies]\npython = '>=3.11,<3.12'\n"
        "torch = {version = '2.6.0', source = 'pt'}\n"
        "xformers = {version = '0.0.29', optional = true}\n"
        "flash-attn = [\n  {version = '2.6.3', python = '<3.11'},\n  {version = '2.7.3', python = '>=3.11'},\n]\n"
        "[tool.poetry.dependencies.transformers]\nversion = '4.46.0'\n"
        "[tool.poetry.group.train.dependencies]\ndeepspeed = '0.15.0'\n"
        "[tool.poetry.group.serve]\noptional = true\n[tool.poetry.group.serve.dependencies]\nvllm = '0.6.3'\n"
        "[[tool.poetry.source]]\nname = 'pt'\nurl = 'https://download.pytorch.org/whl/cu124'\npriority = 'explicit'\n"
    )
    assert told(found, "torch.version") == ("2.6.0", 5)
    assert told(found, "torch.cuda")[0] == "12.4"
    assert found.facts.value("flash-attn.version") == "2.7.3"
    assert found.facts.value("transformers.version") == "4.46.0"
    assert told(found, "deepspeed.version") == ("0.15.0", 14)
    assert "xformers.version" not in found.facts and "vllm.version" not in found.facts


def test_dependencies_that_setuptools_reads_from_files(project):
    text = "[project]\ndynamic = ['dependencies']\n[tool.setuptools.dynamic]\ndependencies = {file = ['req.txt']}\n"
    found = project(text, **{"req.txt": "\ntorch==2.6.0\n"})
    assert found.facts["torch.version"].source.endswith("req.txt:2")


def test_pipfile(project):
    found = project(
        "[[source]]\nurl = 'https://download.pytorch.org/whl/cu124'\nname = 'pt'\n[packages]\n"
        "torch = {version = '==2.6.0', index = 'pt'}\nflash-attn = '==2.7.3'\n[dev-packages]\nvllm = '==0.6.3'\n"
        "[requires]\npython_version = '3.11'\n",
        name="Pipfile",
    )
    assert told(found, "torch.version") == ("2.6.0", 5) and told(found, "torch.cuda") == ("12.4", 2)
    assert "vllm.version" not in found.facts


def test_pixi(project):
    text = (
        "[workspace]\nchannels = ['conda-forge']\n[dependencies]\npython = '3.11.*'\n"
        "pytorch-gpu = {version = '==2.5.1', build = 'cuda126*'}\n[pypi-dependencies]\nflash-attn = '==2.7.3'\n"
        "[target.linux-64.pypi-dependencies]\nxformers = '==0.0.29'\n[feature.serve.pypi-dependencies]\nvllm = '*'\n"
    )
    found = project(text, name="pixi.toml")
    assert told(found, "torch.version") == ("2.5.1", 5) and told(found, "torch.cuda") == ("12.6", 5)
    assert told(found, "flash-attn.version") == ("2.7.3", 7) and told(found, "xformers.version") == ("0.0.29", 9)
    assert "vllm.version" not in found.facts
    inside = text.replace("[workspace]", "[tool.pixi.workspace]")
    for table in ("dependencies", "pypi-dependencies", "target", "feature"):
        inside = inside.replace(f"[{table}", f"[tool.pixi.{table}")
    assert told(project(inside), "flash-attn.version") == ("2.7.3", 7)


@pytest.mark.parametrize(
    ("name", "text", "place", "why"),
    [
        ("pyproject.toml", "[dependency-groups]\na = [{include-group = 'b'}]\nb = [{include-group = 'a'}]\ndev = [\n{include-group = 'a'}]\n", "pyproject.toml:3", "a -> b -> a"),
        ("pyproject.toml", "[dependency-groups]\ndev = [{include-group = 'nope'}]\n", "pyproject.toml:2", "unknown group"),
        ("pyproject.toml", "[dependency-groups]\ndev = [1]\n", "pyproject.toml:2", "not a requirement"),
        ("pyproject.toml", "[dependency-groups]\ndev = 'x'\n", "pyproject.toml:2", "needs a list"),
        ("pyproject.toml", "project = 1\n", "pyproject.toml:1", "needs to be a table"),
        ("pyproject.toml", "[project]\n[tool.uv]\noverride-dependencies = 'x'\n", "pyproject.toml:3", "list of strings"),
        ("pyproject.toml", "[project]\n[tool.uv.sources]\ntorch = 1\n", "pyproject.toml:3", "needs a table"),
        ("pyproject.toml", "[tool.poetry.dependencies]\ntorch = '=>2'\n", "pyproject.toml:2", "not a version range"),
        ("pyproject.toml", "[tool.poetry.dependencies]\ntorch = 2\n", "pyproject.toml:2", "needs a version range"),
        ("pyproject.toml", "[project]\ndynamic = ['dependencies']\n[tool.setuptools.dynamic]\ndependencies = {file = ['../../../../x']}\n", "pyproject.toml:4", "outside the project"),
        ("pyproject.toml", "x = " + "[" * 5000, "pyproject.toml", ""),
        ("pyproject.toml", "[project]\nx = " + "9" * 5000 + "\n", "pyproject.toml", ""),
        ("Pipfile", "x = 1\n", "Pipfile", "no `[packages]`"),
        ("Pipfile", "[packages]\ntorch = 1\n", "Pipfile:2", "needs a version range"),
        ("pixi.toml", "x = 1\n", "pixi.toml", "no `[workspace]`"),
        ("pixi.toml", "[dependencies]\npytorch = '=>2'\n", "pixi.toml:2", "not a version range"),
        ("pixi.toml", "[dependencies]\npytorch = 2\n", "pixi.toml:2", "needs a version range"),
    ],
)  # fmt: skip
def test_bad_input_names_file_line_and_reason(name, text, place, why, read):
    with pytest.raises(DoctorError) as caught:
        read({name: text})
    assert f"/{place}: " in caught.value.message and why in caught.value.message


def test_an_extra_that_is_not_there(project):
    with pytest.raises(DoctorError, match="no extra and no group `nope`"):
        project(HEAD, "[nope]")


def test_only_a_project_has_extras(read):
    with pytest.raises(DoctorError, match="no extras"):
        read({"requirements.txt": "torch\n"}, ["requirements.txt[x]"])


SELF = """\
[project]
name = "Foo_Bar"
dependencies = ["torch==2.6.0"]
[project.optional-dependencies]
kernels = ["flash-attn==2.7.4.post1"]
serve = ["vllm==0.8.5"]
train = ["foo-bar[kernels]", "deepspeed==0.16.4"]
all = ["foo.bar[train,all]", "foo-bar[serve] ; python_version < '3.9'", "foo-bar[gone]"]
[dependency-groups]
dev = ["foo-bar[kernels]"]
"""


def test_extras_that_name_their_own_project_are_followed(read, values):
    declaration = read({"pyproject.toml": SELF}, only=["pyproject.toml[train]"])
    found = values(declaration)
    assert (found["flash-attn.version"], found["deepspeed.version"]) == ("2.7.4.post1", "0.16.4")
    assert "vllm.version" not in found and "foo-bar.version" not in declaration.facts


def test_extras_of_the_own_project_may_name_each_other_and_have_markers(read, values):
    declaration = read({"pyproject.toml": SELF}, only=["pyproject.toml[all]"], python_version="3.11.7")
    assert values(declaration)["flash-attn.version"] == "2.7.4.post1"
    assert "vllm.version" not in values(declaration)  # its marker does not hold
    assert any("the project has no extra `gone`" in note for note in declaration.notes)


def test_a_default_group_that_names_an_extra_of_its_own_project_installs_it(read, values):
    declaration = read({"pyproject.toml": SELF})
    assert values(declaration)["flash-attn.version"] == "2.7.4.post1"
    assert not any("skipped" in note and "kernels" in note for note in declaration.notes)


ISOLATED = "declared.flash_attn_isolated"
FLASH = '[project]\nname = "x"\ndependencies = ["torch==2.6.0", "flash-attn==2.7.3"]\n'


@pytest.mark.parametrize(
    "tables",
    [
        "",
        '[tool.uv.sources]\ntorch = {index = "pt"}\n[[tool.uv.index]]\nname = "pt"\nurl = "https://download.pytorch.org/whl/cu126"\n',
        "[tool.uv]\nno-build-isolation = false\n",
    ],
)
def test_flash_attn_that_installers_build_apart_from_torch(project, tables):
    assert project(FLASH + tables).facts.value(ISOLATED) is True


@pytest.mark.parametrize(
    "tables",
    [
        '[tool.uv]\nno-build-isolation-package = ["flash-attn"]\n',
        "[tool.uv]\nno-build-isolation = true\n",
        '[tool.uv]\nfind-links = ["https://wheels.org/"]\n',
        '[[tool.uv.index]]\nurl = "https://wheels.org/simple"\n',
        '[tool.uv.extra-build-dependencies]\nflash-attn = ["torch"]\n',
        '[tool.uv.sources]\nflash_attn = {git = "https://github.com/Dao-AILab/flash-attention", tag = "v2.7.3"}\n',
        "[tool.pixi.project]\nname = 'x'\n",
    ],
)
def test_flash_attn_that_a_project_excepts(project, tables):
    assert ISOLATED not in project(FLASH + tables).facts


def test_settings_outside_the_project_file(project):
    assert ISOLATED not in project(FLASH, **{"uv.toml": "no-build-isolation = true\n"}).facts
    wheel = "flash-attn @ https://x.org/flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"
    assert ISOLATED not in project(FLASH.replace("flash-attn==2.7.3", wheel)).facts
    group = '[project]\nname = "x"\ndependencies = ["torch"]\n[dependency-groups]\ndev = ["flash-attn==2.7.3"]\n'
    assert ISOLATED not in project(group).facts
