"""Names in object stores: download headers, and files of keys in a folder."""

from __future__ import annotations

import os
import time
from email.message import Message
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.errors import InvalidPath, StorageUnavailable
from dualtrack.objects.disposition import attachment, safe_content_type
from dualtrack.objects.folder import FolderStore


@given(st.text(max_size=300))
def test_no_name_breaks_out_of_the_header(name: str) -> None:
    value = attachment(name)
    assert value.isascii()
    assert value.isprintable()
    message = Message()
    message["Content-Disposition"] = value
    assert message.get_content_disposition() == "attachment"
    plain = message.get_param("filename", header="Content-Disposition")
    assert plain  # never empty: a browser would make up a name from the address


def test_names_beyond_ascii_come_through() -> None:
    assert attachment("größe 50%.csv") == "attachment; filename=\"gr__e 50_.csv\"; filename*=UTF-8''gr%C3%B6%C3%9Fe%2050%25.csv"
    assert attachment("a/b\\c") == "attachment; filename=\"a_b_c\"; filename*=UTF-8''a_b_c"
    assert attachment("") == "attachment; filename=\"download\"; filename*=UTF-8''download"


@pytest.mark.parametrize(
    ("given_type", "used"),
    [
        ("text/csv", "text/csv"),
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("text/html\r\nX: 1", "application/octet-stream"),
        ("nonsense", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_content_types(given_type: str, used: str) -> None:
    assert safe_content_type(given_type) == used


def test_a_key_below_another_key_is_refused(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a/b", b"1")
    with pytest.raises(InvalidPath, match="part of another key"):
        store.put("a/b/c", b"2")
    with pytest.raises(InvalidPath, match="part of another key"):
        store.put("a", b"2")
    assert store.get("a/b") == b"1"
    assert list((tmp_path / ".incoming").iterdir()) == []


def test_the_folder_is_private_and_leftovers_of_crashed_writers_go(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "objects")
    store.put("a", b"1")
    assert (tmp_path / "objects").stat().st_mode & 0o777 == 0o700
    old, new = tmp_path / "objects/.incoming/old", tmp_path / "objects/.incoming/new"
    for path in (old, new):
        path.write_bytes(b"half")
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    FolderStore(tmp_path / "objects").ensure()
    assert not old.exists()
    assert new.exists()
    assert list(store.keys("")) == ["a"]


def test_a_folder_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="OBJECTS__PATH"):
        FolderStore(tmp_path / "file" / "objects").ensure()
