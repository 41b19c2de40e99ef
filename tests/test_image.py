"""The Dockerfile, built and run for real: buildah without a daemon, on a base image made by debootstrap."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doctor._version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
MIRROR = os.environ.get("ATTN_DOCTOR_DEBIAN", "http://deb.debian.org/debian")
SUITE = "bookworm"
PIP_FILES = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
PASSED_ON = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "http_proxy", "https_proxy", "no_proxy")


def run(*command: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot", **more}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def mounts() -> list[str]:
    """Certificates, and how pip finds packages on this machine, for the time of the build."""
    files = [path for name in PIP_FILES if (path := Path(name).expanduser()).is_file()]
    folders = {Path("/etc/ssl/certs")}
    for path in files:
        words = path.read_text("utf-8", "replace").split()
        folders |= {
            Path(*Path(word.removeprefix("file://")).parts[:3]) for word in words if word.startswith("file:///")
        }
    folders |= {Path(name) for name in (os.environ.get("PIP_FIND_LINKS"),) if name}
    given = [f"{path}:{'/etc/pip.conf' if len(files) == 1 else path}:ro" for path in files]
    return [f"--volume={text}" for text in (*given, *(f"{path}:{path}:ro" for path in folders if path.is_dir()))]


def settings() -> list[str]:
    return [f"--env={name}" for name in os.environ if name.startswith(PASSED_ON)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of the built image."""
    for program in ("buildah", "debootstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("debootstrap and chroot need root")
    folder = tmp_path_factory.mktemp("image")
    given = os.environ.get("ATTN_DOCTOR_BASE_TREE")  # a tree that debootstrap made before
    tree = Path(given) if given else folder / "tree"
    if not given:
        made = run(
            "debootstrap", "--variant=minbase", "--include=python3,python3-venv", SUITE, str(tree), MIRROR, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"debootstrap made no base image: {made.stderr.strip()[-200:] or made.stdout.strip()[-200:]}")
    place = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"), "TMPDIR": str(folder)}
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\nrunroot = "{folder}/run"\ngraphroot = "{folder}/store"\n'
    )
    os.environ.update(place)
    base = run("buildah", "from", "scratch").stdout.strip()
    run("buildah", "copy", "--quiet", base, str(tree), "/")
    run("buildah", "commit", "--quiet", base, "localhost/base")
    run("buildah", "rm", base)
    run(
        "buildah", "bud", "--isolation=chroot", "--pull-never", "--build-arg=BASE=localhost/base",
        *mounts(), *settings(), "--tag=localhost/attn-doctor", f"--file={ROOT / 'Dockerfile'}", str(ROOT),
    )  # fmt: skip
    yield "localhost/attn-doctor"
    run("buildah", "rm", "--all", check=False)
    for name in place:
        del os.environ[name]
    shutil.rmtree(folder, ignore_errors=True)


def test_the_image_has_labels_and_no_root_user(image: str) -> None:
    config = json.loads(run("buildah", "inspect", "--type=image", image).stdout)["OCIv1"]["config"]
    assert config["Entrypoint"] == ["/usr/local/bin/attn-doctor"]
    assert config["User"] and config["User"].split(":")[0] not in ("0", "root")
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "attn-doctor"
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_image_checks_its_own_python_and_a_facts_file(image: str) -> None:
    facts = ROOT / "examples" / "output" / "healthy.yaml"
    container = run("buildah", "from", "--pull-never", image).stdout.strip()
    run("buildah", "copy", "--quiet", "--chmod=644", container, str(facts), "/facts.yaml")

    def inside(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("buildah", "run", "--isolation=chroot", container, "--", *arguments, check=False)

    assert inside("id", "-u").stdout.strip() == "65532"
    version = inside("attn-doctor", "--version")
    assert version.stdout == f"attn-doctor {__version__}\n", version.stderr
    healthy = inside("attn-doctor", "check", "--facts", "/facts.yaml")
    assert healthy.returncode == 0 and ": no known problems" in healthy.stdout.partition("\n")[0], healthy.stderr
    bare = inside("attn-doctor", "check", "--python", "python3")
    assert bare.returncode == 3 and "no attention libraries" in bare.stderr.lower(), bare.stderr
    run("buildah", "rm", container)
