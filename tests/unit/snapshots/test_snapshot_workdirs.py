"""The executor's directories: one per job, shared by nobody, bounded, and gone at the end, whatever a job left in them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dualtrack.domain.errors import SandboxUnavailable
from dualtrack.objects import process_dir
from dualtrack.objects.workdirs import WorkdirBusy, Workdirs
from dualtrack.settings import SandboxSettings

from .conftest import nest


def open_workdirs(base: Path, **options: float) -> Workdirs:
    limits = {name: options.pop(name) for name in ("hot_workspaces", "hot_bytes") if name in options}
    return Workdirs(SandboxSettings.model_validate({"workspaces": base, "uid": 65534} | limits), **options)


def processes(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.is_dir()]


def test_a_job_finds_its_directory_as_it_left_it(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w") as workdirs:
        with workdirs.lease("job_a") as directory:
            (directory.path / "file").write_text("1")
        with workdirs.lease("job_b") as other:
            assert list(other.path.iterdir()) == []
            assert other.path != directory.path
        with workdirs.lease("job_a") as again, workdirs.exclusive(again):
            assert (again.path / "file").read_text() == "1"
        root = directory.path.parent
    assert not root.exists()
    assert processes(tmp_path / "w") == []


def test_directories_belong_to_the_sandboxs_user(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w") as workdirs, workdirs.lease("job_a") as directory:
        status = directory.path.stat()
        assert status.st_mode & 0o777 == 0o700
        if os.geteuid() == 0:
            assert directory.owner == (65534, 65534)
            assert (status.st_uid, status.st_gid) == (65534, 65534)
        else:
            assert directory.owner is None
        assert (tmp_path / "w").stat().st_mode & 0o777 == 0o711


def test_leases_of_a_job_exclude_each_other_except_shared_ones(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w", timeout_s=0.01) as workdirs:
        with workdirs.lease("job_a"):
            with pytest.raises(WorkdirBusy, match="job_a"), workdirs.lease("job_a"):
                pass
            with pytest.raises(WorkdirBusy), workdirs.lease("job_a", shared=True):
                pass
            with workdirs.lease("job_b"):
                pass
        with workdirs.lease("job_a", shared=True) as one, workdirs.lease("job_a", shared=True) as two:
            assert one is two
            with pytest.raises(WorkdirBusy), workdirs.lease("job_a"):
                pass
        with workdirs.lease("job_a"):
            pass


def test_a_waiting_lease_is_given_when_the_other_ends(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w") as workdirs:
        got = threading.Event()

        def wait() -> None:
            with workdirs.lease("job_a"):
                got.set()

        with workdirs.lease("job_a"):
            waiter = threading.Thread(target=wait)
            waiter.start()
            assert not got.is_set()
        assert got.wait(60)
        waiter.join()


def test_the_least_recently_used_idle_directory_goes_first(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w", hot_workspaces=2) as workdirs:
        with workdirs.lease("job_held") as held:
            paths = {}
            for job in ("job_a", "job_b", "job_c"):
                with workdirs.lease(job) as directory:
                    paths[job] = directory.path
            assert held.path.exists()
            assert [job for job, path in paths.items() if path.exists()] == ["job_c"]
        assert sorted(path.name for path in held.path.parent.iterdir()) == ["job_c", "job_held", "lock"]


def test_directories_together_hold_so_many_bytes(tmp_path: Path) -> None:
    with open_workdirs(tmp_path / "w", hot_bytes=100) as workdirs:
        paths = {}

        def use(job: str, size: int) -> None:
            with workdirs.lease(job) as directory:
                directory.size = size
                paths[job] = directory.path

        for job in ("job_a", "job_b", "job_c"):
            use(job, 40 if job != "job_c" else 10)
        use("job_a", 40)
        use("job_d", 30)
        assert [job for job, path in paths.items() if path.exists()] == ["job_a", "job_c", "job_d"], "the least recently used went"
        use("job_d", 95)
        assert [job for job, path in paths.items() if path.exists()] == ["job_d"]
        use("job_e", 1000)
        assert [job for job, path in paths.items() if path.exists()] == [], "what alone is too large is not kept either"
        with workdirs.lease("job_f") as held:
            held.size = 1000
            use("job_a", 1)
            assert held.path.exists(), "what is in use stays"


def test_hostile_trees_are_removed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("1")
    with open_workdirs(tmp_path / "w") as workdirs, workdirs.lease("job_a") as directory:
        (directory.path / "link").symlink_to(outside)
        os.mkfifo(directory.path / "pipe")
        Path(os.fsdecode(os.fsencode(directory.path) + b"/\xff")).mkdir()
        (directory.path / "locked" / "inner").mkdir(parents=True)
        (directory.path / "locked" / "inner" / "file").touch(0o000)
        (directory.path / "locked" / "inner").chmod(0o000)
        (directory.path / "locked").chmod(0o000)
        nest(directory.path, 1200)
        directory.path.chmod(0o000)
    assert processes(tmp_path / "w") == []
    assert (outside / "kept").read_text() == "1"


def test_what_a_dead_process_left_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from dualtrack.objects.workdirs import Workdirs\n"
        "from dualtrack.settings import SandboxSettings\n"
        "workdirs = Workdirs(SandboxSettings(workspaces=pathlib.Path(sys.argv[1])))\n"
        "with workdirs.lease('job_a') as directory:\n"
        "    (directory.path / 'file').write_text('1')\n"
        "    print(directory.path, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    base = tmp_path / "w"
    with open_workdirs(base) as living, living.lease("job_a") as mine:
        done = subprocess.run([sys.executable, "-c", script, str(base)], stdout=subprocess.PIPE, text=True, check=False)
        left = Path(done.stdout.strip())
        assert (left / "file").exists()
        assert left != mine.path
        with open_workdirs(base):
            assert not left.parent.exists()
            assert mine.path.exists()
    assert processes(base) == []


FORKING = """
import os, sys
from pathlib import Path
from dualtrack.objects.own_directory import own_directory
base = Path(sys.argv[1])
own = own_directory(base)
assert own_directory(base) is own
child = os.fork()
if not child:
    assert own_directory(base).path != own.path
    sys.exit(0)  # with all that is done at a process's exit
assert os.waitpid(child, 0)[1] == 0
assert [path for path in base.iterdir() if path.is_dir()] == [own.path], "its own is gone with it, ours is not"
"""


def test_a_process_that_was_forked_has_a_directory_of_its_own_and_leaves_the_others(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, str(tmp_path / "base")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["lock"]


def test_only_directories_of_processes_are_taken_for_leavings(tmp_path: Path) -> None:
    base = tmp_path / "w"
    (base / ".bwrap-0123456789abcdef").mkdir(parents=True)
    (base / "123-0123abcd").mkdir()
    with open_workdirs(base):
        assert (base / ".bwrap-0123456789abcdef").is_dir()
        assert not (base / "123-0123abcd").exists()


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxUnavailable, match="SANDBOX__WORKSPACES"):
        open_workdirs(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match="SANDBOX__WORKSPACES"):
        open_workdirs(tmp_path / "file")


@pytest.mark.parametrize("job", ["../x", "a/b", ".", "..", "/etc", ""])
def test_a_job_id_names_one_directory(tmp_path: Path, job: str) -> None:
    with open_workdirs(tmp_path / "w") as workdirs, pytest.raises(ValueError, match="no job id"), workdirs.lease(job):
        pass


def test_leavings_that_can_not_be_removed_yet_keep_nobody_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, gone = tmp_path / "w" / "1-00000000", tmp_path / "w" / "2-00000000"
    for left in (stuck, gone):
        (left / "job_a").mkdir(parents=True)
    real = process_dir.remove_in

    def busy(directory: Path, name: str) -> None:
        if name == stuck.name:
            raise OSError(errno.EBUSY, "something is mounted there", name)
        real(directory, name)

    monkeypatch.setattr(process_dir, "remove_in", busy)
    with open_workdirs(tmp_path / "w"):
        assert (stuck.exists(), gone.exists()) == (True, False)
        assert str(stuck) in caplog.text
    monkeypatch.undo()
    with open_workdirs(tmp_path / "w"):
        assert not stuck.exists()
