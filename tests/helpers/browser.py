"""A page in a headless browser: screenshots, and what axe-core says of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from html import unescape
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000")


def screenshot(page: Path, to: Path, width: int, height: int, *flags: str) -> None:
    """The page as a picture, `width` CSS pixels wide."""
    _chromium(page, f"--screenshot={to}", f"--window-size={width},{height}", *flags)


def dom(page: Path, *flags: str) -> str:
    """The page's markup after its scripts have run."""
    return _chromium(page, "--dump-dom", *flags)


def violations(page: Path, axe: Path, *flags: str) -> list[dict[str, Any]]:
    """What axe-core complains about."""
    probe = page.with_name(f"axe-{page.name}")
    run = (
        "axe.run(document,{resultTypes:['violations']}).then(function(r){document.body.setAttribute('data-axe',"
        "JSON.stringify(r.violations.map(function(v){"
        "return{id:v.id,nodes:v.nodes.map(function(n){return n.html})}})))})"
        ".catch(function(e){document.body.setAttribute('data-axe','failed: '+e)})"
    )
    script = axe.read_text("utf-8").replace("</script", "<\\/script")
    probe.write_text(with_script(page, f"{script}</script><script>{run}"), "utf-8")
    found = re.search(r'data-axe="([^"]*)"', dom(probe, *flags))
    assert found, "axe-core did not finish"
    result: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return result


def with_script(page: Path, script: str) -> str:
    """Return the page with a script at its end, and without the policy that would forbid it."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text("utf-8"))
    return text.replace("</body>", f"<script>{script}</script></body>")


def fetch_axe(folder: Path) -> Path:
    """axe-core from the npm registry."""
    name = subprocess.run(
        ["npm", "pack", "--silent", "axe-core"], cwd=folder, capture_output=True, text=True, check=True, timeout=180
    ).stdout.strip()
    with tarfile.open(folder / name) as packed:
        packed.extract("package/axe.min.js", folder)
    return folder / "package" / "axe.min.js"


def _chromium(page: Path, *flags: str) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *_FLAGS, *flags, page.as_uri()], capture_output=True, text=True, check=True, timeout=180
    )
    return done.stdout
