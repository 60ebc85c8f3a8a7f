"""Files without a name take space that no walk finds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualtrack.domain.limits import MIB
from dualtrack.sandbox.hidden import HiddenFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")

HOLD = """
import mmap, os, sys
fd = os.open("file", os.O_CREAT | os.O_RDWR)
os.unlink("file")
os.write(fd, b"x" * (3 << 20))
if sys.argv[1] == "mapped":
    held = mmap.mmap(fd, 3 << 20)
    os.close(fd)
os.chdir(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["open", "mapped"])
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory in which a process, which has left it, holds 3 MiB."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, request.param, "/"], cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield workspace
        process.kill()


def test_they_count_where_they_were(holder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    hidden = HiddenFiles()
    assert 3 * MIB <= hidden.size(holder, holder.stat()) <= 3 * MIB + 65536
    assert hidden.size(tmp_path / "other", (tmp_path / "other").stat()) == 0
