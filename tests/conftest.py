"""What every test gets: a cache folder of its own, and no project defaults from around the checkout."""

import os

import pytest


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Compiled rules go to a folder of this run, not to the home of whoever runs the tests."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before
