"""Adds one step to the build of a wheel: the rules are compiled into it, so that the first check need not do it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

COMPILE = """
from doctor.rulebook.cache import write_shipped

write_shipped()
"""


class BuildWithRules(build_py):
    """Copies the package, then compiles the rules of the copy with the code of the copy."""

    def run(self) -> None:
        """Build; an editable install compiles nothing, since its rules change."""
        if not self.editable_mode:  # of an earlier build: a rule that was removed since then
            shutil.rmtree(Path(self.build_lib, "doctor"), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            package = str(Path(self.build_lib).resolve())
            path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": path}
            subprocess.run([sys.executable, "-B", "-c", COMPILE], cwd=package, env=environment, check=True)


setup(cmdclass={"build_py": BuildWithRules})
