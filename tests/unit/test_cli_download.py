"""Safe names and files that are there completely or not at all."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.destination import descriptor, save
from cli.download import safe_name, verified
from cli.outcome import ApiError, OutputProblem, UsageProblem


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("report.md", "report.md"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\x.exe", "x.exe"),
        ("/etc/cron.d/x", "x"),
        (".bashrc", "bashrc"),
        ("-rf", "rf"),
        ("..", "art_1"),
        ("a/", "art_1"),
        ("", "art_1"),
        (None, "art_1"),
        ("a\x00b\nc", "a_b_c"),
        ("gpj\u202eexe.md", "gpj_exe.md"),
        ("con.txt", "_con.txt"),
        ("größe €.csv", "größe €.csv"),
    ],
)
def test_safe_name(text: str | None, name: str) -> None:
    assert safe_name(text, "art_1") == name


@given(st.text(), st.text())
def test_a_name_is_always_one_plain_visible_file(text: str, fallback: str) -> None:
    name = safe_name(text, fallback)
    assert name
    assert len(name.encode()) <= 255
    assert not set("/\\\0") & set(name)
    assert name[0] not in ".-~"


def test_a_long_name_keeps_its_suffix() -> None:
    name = safe_name("é" * 400 + ".xlsx", "x")
    assert name.endswith("é.xlsx")
    assert len(name.encode()) <= 255


def test_saves_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    assert save(verified([b"ab", b"c"], hashlib.sha256(b"abc").hexdigest()), target, force=False) == 3
    assert target.read_bytes() == b"abc"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert not stat.S_IMODE(target.stat().st_mode) & 0o111


def test_never_overwrites_without_force(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("mine")
    with pytest.raises(UsageProblem, match="--force"):
        save([b"theirs"], target, force=False)
    assert target.read_text() == "mine"
    save([b"theirs"], target, force=True)
    assert target.read_text() == "theirs"


def test_a_dangling_link_counts_as_there(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageProblem):
        save([b"x"], tmp_path / "a", force=False)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def chunks() -> Iterator[bytes]:
        yield b"x"
        target.write_text("faster")

    with pytest.raises(UsageProblem, match="already"):
        save(chunks(), target, force=False)
    assert target.read_text() == "faster"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_download_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x"
        raise ApiError("cut", status=0)

    with pytest.raises(ApiError):
        save(broken(), tmp_path / "a", force=False)
    with pytest.raises(ApiError, match="SHA-256"):
        save(verified([b"x"], "0" * 64), tmp_path / "a", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="Can't write"):
        save([b"x"], tmp_path / "no" / "a", force=False)


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("mine")
    target.chmod(0o600)
    save([b"theirs"], target, force=True)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/real").write_text("old")
    (tmp_path / "link").symlink_to("there/real")
    save([b"new"], tmp_path / "link", force=True)
    assert (tmp_path / "link").readlink() == Path("there/real")
    assert (tmp_path / "there/real").read_text() == "new"
    (tmp_path / "there/real").unlink()
    save([b"again"], tmp_path / "link", force=True)
    assert (tmp_path / "there/real").read_text() == "again"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "real", "there"]


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    with pytest.raises(UsageProblem, match="circle"):
        save([b"x"], tmp_path / "a", force=True)
    assert (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("force", [True, False])
def test_a_pipe_gets_the_bytes_and_stays(tmp_path: Path, force: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert save([b"ab", b"", b"c"], link, force=force) == 3
    reader.join(60)
    assert found == [b"abc"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


def test_a_device_gets_the_bytes_and_stays() -> None:
    assert save([b"abc"], Path(os.devnull), force=True) == 3
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    with pytest.raises(OutputProblem, match="No space left"):
        save([b"abc"], Path("/dev/full"), force=True)
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_other_kinds_are_refused_and_stay(tmp_path: Path) -> None:
    os.mknod(tmp_path / "socket", stat.S_IFSOCK | 0o600)
    (tmp_path / "directory").mkdir()
    for name, words in (("socket", "a socket"), ("directory", "a directory")):
        with pytest.raises(UsageProblem, match=words):
            save([b"x"], tmp_path / name, force=True)
    assert stat.S_ISSOCK((tmp_path / "socket").stat().st_mode)


def test_what_appears_meanwhile_and_is_no_file_stays(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def chunks() -> Iterator[bytes]:
        yield b"x"
        os.mkfifo(target)

    with pytest.raises(UsageProblem, match="FIFO"):
        save(chunks(), target, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert stat.S_ISFIFO(target.stat().st_mode)


def test_an_open_descriptor_is_written_from_where_it_stands(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as file:
        file.write(b"before ")
        file.flush()
        for place in ("/dev/fd", "/proc/self/fd"):
            save([b"x"], Path(f"{place}/{file.fileno()}"), force=False)
    assert (tmp_path / "log").read_bytes() == b"before xx"
    with pytest.raises(UsageProblem, match="can't be opened"):
        save([b"x"], Path("/dev/fd/999999"), force=False)


def test_descriptors() -> None:
    assert [descriptor(text) for text in ("/dev/stdout", "/dev/stderr", "/dev/fd/7", "/proc/self/fd/1")] == [1, 2, 7, 1]
    assert [descriptor(text) for text in ("-", "a", "/dev/null", "/dev/fd/x", "x/dev/fd/1")] == [None] * 5


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="too long"):
        save([b"x"], tmp_path / ("a" * 300), force=True)
