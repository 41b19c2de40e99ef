"""What every test gets: a cache folder of its own, and no project defaults from around the checkout."""

import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from doctor.rulebook.rulebook import load_rulebook


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Compiled rules go to a folder of this run, which its workers share, not to the home of the user."""
    before = os.environ.get("XDG_CACHE_HOME")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(folder)
    load_rulebook()  # its libraries add words to the vocabulary
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture
def cache_of_its_own(own_cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone, in which the built-in rules are compiled already."""
    shared = Path(os.environ["XDG_CACHE_HOME"]) / "attn-doctor"
    if not any(shared.glob("rules-*.json")):
        load_rulebook()
    mine = tmp_path / "cache"
    (mine / "attn-doctor").mkdir(parents=True)
    for file in shared.glob("rules-*.json"):
        shutil.copy(file, mine / "attn-doctor")
    monkeypatch.setenv("XDG_CACHE_HOME", str(mine))
    return mine


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter that has torch: ours, or the one that ATTN_DOCTOR_TORCH_PYTHON names."""
    named = os.environ.get("ATTN_DOCTOR_TORCH_PYTHON")
    if named:
        return named
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    pytest.skip("no torch in this interpreter, and ATTN_DOCTOR_TORCH_PYTHON is not set")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Keep the tests of a file in one worker: its fixtures start torch once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


# Hundreds of tests start a process of ours: without compiled modules each would compile them all again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The tests run in several processes: threads of torch would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Folders whose files take longest: started first, so that no worker is left with a long one at the end.
LONGEST = ("stress", "solver", "apply", "kernels", "diagnosis", "cli")


def pytest_collection_modifyitems(items):
    """Put the folders that take longest first, in this order."""
    order = {folder: number for number, folder in enumerate(LONGEST)}
    depth = len(Path(__file__).parent.parts)
    items.sort(key=lambda item: order.get(item.path.parts[depth], len(order)))


# A busy machine is no flaw of the code: no deadline per example. The tests that are about time measure it themselves.
settings.register_profile("quick", deadline=None, max_examples=30)
settings.register_profile("thorough", deadline=None, max_examples=300)  # make test-all
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# A run in the background (`nohup`, `&` in a script) inherits SIGINT, SIGQUIT or SIGHUP as ignored, and so would every
# child that a test interrupts: what is handled here is back at its default there.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
