"""setup.py and setup.cfg: what their text states, and what only a run of the script would know."""

# ruff: noqa: E501 - files to read, each on one line

import pytest

from doctor.errors import DoctorError

SETUP = "from setuptools import setup\n"


@pytest.fixture
def project(read):
    def project(text, chosen="", name="setup.py", **files):
        return read({name: text, **{f"{key}.txt": value for key, value in files.items()}}, [f"{name}{chosen}"])

    return project


def told(declaration, key):
    fact = declaration.facts[key]
    return fact.value, int(fact.source.rpartition(":")[2])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("setup(\n  install_requires=[\n    'torch==2.6.0',\n  ],\n)\n", 4),
        ("NEEDS = ['numpy']\nNEEDS += ['torch==2.6.0']\nsetup(install_requires=NEEDS)\n", 3),
        ("NEEDS = ['numpy']\nNEEDS.append('torch==2.6.0')\nsetup(install_requires=list(NEEDS))\n", 3),
        ("setup(install_requires='''\nnumpy\ntorch==2.6.0  # pinned\n''')\n", 4),
        ("options = dict(install_requires=['numpy'] + ['torch==2.6.0'])\nsetup(**options)\n", 2),
        ("def main():\n  needs = ['torch==2.6.0']\n  setup(install_requires=needs)\nmain()\n", 3),
        ("if __name__ == '__main__':\n  setup(install_requires=['torch==2.6.0'])\n", 3),
        (
            "TABLE = ['numpy', 'torch==2.6.0']\ndeps = {n: r for n, r in split(TABLE)}\nsetup(install_requires=[deps['torch']])\n",
            2,
        ),
        (
            "TABLE = ['numpy', 'torch==2.6.0']\ndef take(*names): return [deps[n] for n in names]\nsetup(install_requires=take('torch', 'numpy'))\n",
            2,
        ),
    ],
)
def test_what_the_text_states(project, text, line):
    assert told(project(SETUP + text), "torch.version") == ("2.6.0", line)


@pytest.mark.parametrize(
    "text",
    [
        "with open('requirements.txt') as file:\n  needs = file.read().splitlines()\nsetup(install_requires=needs)\n",
        "needs = [line.strip() for line in open('requirements.txt') if not line.startswith('#')]\nsetup(install_requires=needs)\n",
        "def needs(name='requirements.txt'):\n  return [line for line in open(name)]\nsetup(install_requires=needs())\n",
        "setup(install_requires=parse('requirements.txt'))\n",
    ],
)
def test_a_requirements_file(project, text):
    found = project(SETUP + text, requirements="numpy\ntorch==2.6.0\n")
    assert told(found, "torch.version") == ("2.6.0", 2)
    assert "requirements.txt" in found.facts["torch.version"].source


@pytest.mark.parametrize(
    "text",
    [
        "needs = ['torch==2.6.0']\nif torch.cuda.is_available():\n  needs.append('flash-attn')\nsetup(install_requires=needs)\n",
        "setup(install_requires=find_them())\n",
        "needs = [line for line in open('requirements.txt') if 'torch' not in line]\nsetup(install_requires=needs)\n",
        "setup(install_requires=read('requirements.txt') + find_them())\n",
        "def needs():\n  if on_rocm():\n    return open('more.txt')\n  return open('requirements.txt')\nsetup(install_requires=needs())\n",
        "setup(install_requires=open('../other.txt').read())\n",
        "print('no call')\n",
    ],
)
def test_what_only_a_run_knows(project, text):
    with pytest.raises(DoctorError) as raised:
        project(SETUP + text, requirements="torch==2.6.0\n", more="torch==2.5.0\n")
    assert "setup.py" in raised.value.message
    assert raised.value.hint == "name a requirements file"


def test_extras(project):
    text = SETUP + "extras = {'gpu': ['flash-attn==2.7.3']}\nextras['te'] = ['transformer-engine==1.13.0']\n"
    text += "setup(install_requires=['torch==2.6.0'], extras_require=extras)\n"
    plain = project(text)
    assert "flash-attn.version" not in plain.facts
    assert "skipped optional extras: gpu, te" in plain.notes[0]
    assert told(project(text, "[gpu]"), "flash-attn.version") == ("2.7.3", 2)
    assert project(text, "[*]").facts.value("transformer-engine.version") == "1.13.0"
    with pytest.raises(DoctorError, match="no extra `cpu`"):
        project(text, "[cpu]")
    without = SETUP + "setup(install_requires=['six'], extras_require={'gpu': ['flash-attn==2.7.3']})\n"
    assert project(without).facts.value("flash-attn.version") == "2.7.3"


def test_setup_cfg(project):
    text = "[flake8]\nmax-line-length = 120\n[options]\ninstall_requires =\n    torch==2.6.0\n    numpy\n"
    text += "[options.extras_require]\ngpu = flash-attn==2.7.3\n"
    assert told(project(text, name="setup.cfg"), "torch.version") == ("2.6.0", 5)
    assert told(project(text, "[gpu]", name="setup.cfg"), "flash-attn.version") == ("2.7.3", 8)
    file = "[options]\ninstall_requires = file: requirements.txt\n"
    assert project(file, name="setup.cfg", requirements="torch==2.6.0\n").facts.value("torch.version") == "2.6.0"


def test_a_setup_py_is_not_run(project, tmp_path):
    ran = tmp_path / "ran"
    project(SETUP + f"open({str(ran)!r}, 'w')\nsetup(install_requires=['torch==2.6.0'])\n")
    assert not ran.exists()
