"""Safe names and files that are there completely or not at all."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.download import safe_name, save, verified
from cli.outcome import ApiError, UsageProblem


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
