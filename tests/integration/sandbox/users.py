"""Running a program of a test as an ordinary user."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from dualtrack.sandbox.access import may_traverse

ORDINARY_USER = 12345
PACKAGE_ROOT = Path(__file__).parents[3] / "shared"


def interpreter_for(uid: int) -> tuple[str, dict[str, str]]:
    """A Python of this version that user `uid` may run, and its environment."""
    packages = sysconfig.get_paths()["purelib"]
    environment = {"PYTHONPATH": f"{PACKAGE_ROOT}:{packages}", "PATH": os.environ["PATH"]}
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    for python in (Path(sys.executable).resolve(), system):
        if python.exists() and may_traverse(python.parent, uid):
            if not may_traverse(Path(packages), uid):
                pytest.skip("this checkout can't be read by another user")
            return str(python), environment
    pytest.skip("no Python of this version that another user may run")
