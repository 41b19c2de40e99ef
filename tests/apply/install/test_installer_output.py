"""What uv and pip really print, and what it is taken for."""

from __future__ import annotations

import http.server
import sys
import threading

import pytest

from doctor.apply.install.installer_output import LONGEST, installed, verdict
from doctor.runner.command import Ran, run_child

UV = ("/bin/uv", "pip", "compile", "pins.txt")
PIP = ("/bin/python", "-m", "pip", "install")

CONFLICT = """error: No solution found when resolving dependencies
  cause: Because torch==2.6.0 depends on nvidia-cudnn-cu12{platform_machine == 'x86_64' and sys_platform == 'linux'}==9.1.0.70 and you require torch==2.6.0, we can conclude that you require nvidia-cudnn-cu12==9.1.0.70.
         And because you require nvidia-cudnn-cu12==9.3.0.75, we can conclude that your requirements are unsatisfiable.
"""  # noqa: E501 - as uv prints it
OLDER = """  × No solution found when resolving dependencies:
  ╰─▶ Because torch==2.6.0 depends on nvidia-cudnn-cu12==9.1.0.70 and you
      require torch==2.6.0, we can conclude that you require
      nvidia-cudnn-cu12==9.1.0.70.
      And because you require nvidia-cudnn-cu12==9.3.0.75, we can conclude that your requirements are unsatisfiable.

      hint: something else
"""
OFFLINE = """error: No solution found when resolving dependencies
  cause: Because torch was not found in the cache and you require torch==2.6.0, we can conclude that your requirements are unsatisfiable.

hint: Packages were unavailable because the network was disabled. When the network is disabled, registry packages may only be read from the cache.
"""  # noqa: E501 - as uv prints it
NO_NETWORK = """error: Failed to fetch: https://registry.invalid/simple/torch/
  cause: error sending request for url (https://registry.invalid/simple/torch/)
  cause: client error (Connect)
  cause: dns error
  cause: failed to lookup address information: Name or service not known
"""
NO_BUILD = """error: No solution found when resolving dependencies
  cause: Because flash-attn==2.5.6 has no usable wheels and you require flash-attn==2.5.6, we can conclude that your requirements are unsatisfiable.

hint: Wheels are required for `flash-attn` because building from source is disabled for all packages (i.e., with `--no-build`)
"""  # noqa: E501 - as uv prints it
FAILED_BUILD = """  × Failed to build `flash-attn==2.5.6`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)
      ModuleNotFoundError: No module named 'torch'
"""
PIP_CONFLICT = """
The conflict is caused by:
    The user requested torch==2.6.0
    xformers 0.0.29 depends on torch==2.5.1

To fix this you could try to:
1. loosen the range of package versions you've specified
"""
PIP_CONFLICT_ERR = """ERROR: Cannot install torch==2.6.0 and xformers==0.0.29 because these package versions have conflicting dependencies.
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/
"""  # noqa: E501 - as pip prints it
PIP_NONE = """ERROR: Could not find a version that satisfies the requirement six==99 (from versions: 1.15.0, 1.16.0)
ERROR: No matching distribution found for six==99
"""
PIP_OFFLINE = """WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object>: Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/six/
ERROR: Could not find a version that satisfies the requirement six==1.16.0 (from versions: none)
ERROR: No matching distribution found for six==1.16.0
"""  # noqa: E501 - as pip prints it
PIP_SILENT = """ERROR: Could not find a version that satisfies the requirement six==1.16.0 (from versions: none)
ERROR: No matching distribution found for six==1.16.0
"""
UV_DENIED = """error: No solution found when resolving dependencies
  cause: Because six was not found in the package registry and you require six==1.16.0, we can conclude that your requirements are unsatisfiable.

hint: An index URL (https://registry.invalid/simple) could not be queried due to a lack of valid authentication credentials (401 Unauthorized)
"""  # noqa: E501 - as uv prints it
UV_FORBIDDEN = UV_DENIED.partition("hint:")[0] + (
    "hint: An index (https://registry.invalid/simple) returned a 403 Forbidden error. Check that the index URL is "
    "correct and the credentials are valid.\n"
)
LOST = (
    "connection error: HTTPSConnectionPool(host='registry.invalid', port=443): Max retries exceeded with url: "
    "/simple/six/ (Caused by NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f5>: "
    "Failed to establish a new connection: [Errno -2] Name or service not known'))"
)
PIP_OLD = "Usage:\n  pip install [options]\n\nno such option: --dry-run\n"


@pytest.mark.parametrize(
    ("command", "out", "err", "outcome", "words"),
    [
        (UV, "", CONFLICT, False, ["torch==2.6.0 depends on nvidia-cudnn-cu12==9.1.0.70", "9.3.0.75"]),
        (UV, "", OLDER, False, ["torch==2.6.0 depends on nvidia-cudnn-cu12==9.1.0.70", "9.3.0.75"]),
        (UV, "", OFFLINE, None, ["the package index could not be reached"]),
        (UV, "", NO_NETWORK, None, ["could not be reached", "failed to lookup address information"]),
        (UV, "", NO_BUILD, None, ["flash-attn==2.5.6 has no usable wheels"]),
        (UV, "", FAILED_BUILD, None, ["building a source", "flash-attn==2.5.6"]),
        (UV, "", "error: something new\n", None, ["uv ended with status 1: error: something new"]),
        (PIP, PIP_CONFLICT, PIP_CONFLICT_ERR, False, ["xformers 0.0.29 depends on torch==2.5.1"]),
        (PIP, "", PIP_NONE, False, ["six==99"]),
        (PIP, "", PIP_OFFLINE, None, ["could not be reached"]),
        (UV, "", UV_DENIED, None, ["could not be reached", "401 Unauthorized"]),
        (UV, "", UV_FORBIDDEN, None, ["could not be reached: an index returned a 403 Forbidden error"]),
        (PIP, "", PIP_OLD, None, ["this pip is too old", "`--dry-run`"]),
        (PIP, "", "OSError: [Errno 28] No space left on device", None, ["the disk is full"]),
    ],
)
def test_a_failure_is_distinguished(command, out, err, outcome, words):
    found = verdict(Ran(command, 1, out, err, 1.0))
    assert found.outcome is outcome
    assert all(word in found.reason for word in words), found.reason


@pytest.mark.parametrize(
    ("err", "package", "why", "outcome"),
    [
        (PIP_SILENT, "six", LOST, None),
        (PIP_SILENT, "six", "404 Client Error: Not Found for url: https://registry.invalid/simple/six/", False),
        (PIP_SILENT, "six", "403 Client Error: Forbidden for url: https://registry.invalid/simple/six/", None),
        (PIP_SILENT, "six", "503 Server Error: Busy for url: https://registry.invalid/simple/six/", None),
        (PIP_SILENT, "torch", LOST, False),  # the query was for another package, and found it elsewhere
        (PIP_NONE, "six", LOST, None),  # one of several indexes: it may have what the other lacks
        (PIP_NONE, "six", "403 Client Error: Forbidden for url: https://registry.invalid/simple/six/", False),
        (PIP_CONFLICT_ERR, "six", LOST, None),
    ],
)
def test_pip_s_no_counts_only_if_every_index_said_what_it_has(err, package, why, outcome):
    """Without a second try only its log distinguishes a page that it could not read from one that is not there."""
    found = verdict(Ran(PIP, 1, "", err, 1.0, unread=(f"https://registry.invalid/simple/{package}/: {why}",)))
    assert found.outcome is outcome and found.reached is (outcome is False)
    if why is LOST and outcome is None:
        assert found.reason.endswith(
            "reached: Failed to establish a new connection: [Errno -2] Name or service not known"
        )


@pytest.mark.parametrize(("status", "outcome"), [(404, False), (503, None), (None, None)])
def test_the_real_pip_shows_it_in_its_log(tmp_path, status, outcome, monkeypatch):
    pytest.importorskip("pip")

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Index)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_RETRIES", "0")
    if status is None:
        server.server_close()  # no one listens there any more
    else:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path), "six==1.16.0"]
    ran = run_child(command, timeout=60)
    if status is not None:
        server.shutdown()
        server.server_close()
    assert "No matching distribution found" in ran.said and "Retrying" not in ran.said
    found = verdict(ran)
    assert (found.outcome, found.reached) == (outcome, outcome is False), found.reason


def test_the_sentences_are_short_and_without_noise():
    reason = verdict(Ran(UV, 1, "", CONFLICT, 1.0)).reason
    assert "sys_platform" not in reason and "unsatisfiable" not in reason and "hint" not in reason
    endless = CONFLICT.replace("you require torch==2.6.0", "you require torch==2.6.0. " + "And because of that. " * 90)
    assert len(verdict(Ran(UV, 1, "", endless, 1.0)).reason) <= LONGEST + 3


def test_success_and_no_answer():
    assert verdict(Ran(UV, 0, "", "warning: no solution found", 1.0)).outcome is True
    late = verdict(Ran(UV, None, "", "", 1.0, "gave no answer within 5 s"))
    assert late.outcome is None and late.reason == "uv gave no answer within 5 s"
    assert verdict(Ran(PIP, None, "", "", 1.0, "gave no answer within 5 s")).reason.startswith("pip ")


def test_an_installation_that_fails_has_failed():
    """A resolver that cannot say is no refusal; an installer that ends badly has not installed."""
    assert installed(Ran(UV, 2, "", "error: something new\n", 1.0)).outcome is False
    assert installed(Ran(UV, 1, "", FAILED_BUILD, 1.0)).outcome is False
    assert installed(Ran(UV, 2, "", NO_NETWORK, 1.0)).outcome is None
