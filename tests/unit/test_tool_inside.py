from __future__ import annotations

import os
from pathlib import Path

import pytest

from dualtrack.tools import inside
from dualtrack.tools.inside import Refused


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_read_whole_and_paged(workspace: Path) -> None:
    (workspace / "a.txt").write_text("".join(f"line {n}\n" for n in range(1, 11)))
    assert inside.read("a.txt", 1, 200, 4000) == "\n".join(f"line {n}" for n in range(1, 11))
    assert inside.read("a.txt", 1, 2, 4000) == "line 1\nline 2\n[lines 1-2 of 10; continue with offset_line=3]"
    assert inside.read("a.txt", 9, 5, 4000) == "line 9\nline 10\n[lines 9-10 of 10]"
    assert inside.read("a.txt", 1, 200, 15) == "line 1\nline 2\n[lines 1-2 of 10; continue with offset_line=3]"
    with pytest.raises(Refused, match="has only 10 lines"):
        inside.read("a.txt", 11, 5, 4000)


def test_read_odd_files(workspace: Path) -> None:
    (workspace / "empty").write_text("")
    (workspace / "binary").write_bytes(b"\x89PNG\0\0")
    (workspace / "long").write_bytes(b"x" * 100_000 + b"\nend")
    (workspace / "latin").write_bytes(b"caf\xe9\r\n")
    (workspace / "folder").mkdir()
    os.mkfifo(workspace / "pipe")
    assert inside.read("empty", 1, 9, 99) == "(empty file)"
    assert inside.read("latin", 1, 9, 99) == "caf�"
    cut = inside.read("long", 1, 9, 99_999)
    assert "[… line cut, 98000 more bytes]" in cut
    assert cut.endswith("\nend")
    for path, why in (("binary", "binary file"), ("folder", "is a directory"), ("pipe", "not a regular file")):
        with pytest.raises(Refused, match=why):
            inside.read(path, 1, 9, 99)


def test_a_missing_file_says_what_there_is(workspace: Path) -> None:
    (workspace / "data").mkdir()
    (workspace / "data" / "orders.csv").touch()
    with pytest.raises(Refused, match=r"data/order\.csv: No such file or directory\. data has: orders\.csv\."):
        inside.read("data/order.csv", 1, 9, 99)
    with pytest.raises(Refused, match=r"The workspace has: data\."):
        inside.read("orders.csv", 1, 9, 99)


def test_write_makes_directories_and_replaces(workspace: Path) -> None:
    assert inside.write("a/b/c.txt", "é\n") == "Wrote a/b/c.txt (3 B, 1 lines)."
    assert inside.write("a/b/c.txt", "x") == "Wrote a/b/c.txt (1 B, 1 lines)."
    assert (workspace / "a/b/c.txt").read_text() == "x"
    for path, why in (("a/b", "is a directory"), ("a/b/c.txt/d", "a file stands where a directory is needed")):
        with pytest.raises(Refused, match=why):
            inside.write(path, "y")


def test_edit(workspace: Path) -> None:
    file = workspace / "a.py"
    file.write_text("x = 1\ny = 1\n")
    assert inside.edit("a.py", "x = 1", "x = 2", replace_all=False) == "Replaced 1 match in a.py."
    with pytest.raises(Refused, match="No match"):
        inside.edit("a.py", "x = 1", "x = 2", replace_all=False)
    file.write_text("1 1")
    with pytest.raises(Refused, match="matches 2 times"):
        inside.edit("a.py", "1", "2", replace_all=False)
    assert file.read_text() == "1 1"
    assert inside.edit("a.py", "1", "2", replace_all=True) == "Replaced 2 matches in a.py."
    assert file.read_text() == "2 2"


def test_edit_keeps_line_ends_and_refuses_what_is_no_text(workspace: Path) -> None:
    (workspace / "dos.txt").write_bytes(b"a\r\nb\r\nc\r\n")
    inside.edit("dos.txt", "a\nb", "a\nB", replace_all=False)
    assert (workspace / "dos.txt").read_bytes() == b"a\r\nB\r\nc\r\n"
    (workspace / "raw").write_bytes(b"\xff\xfe")
    with pytest.raises(Refused, match="not UTF-8"):
        inside.edit("raw", "a", "b", replace_all=False)


def test_list(workspace: Path) -> None:
    (workspace / "b.txt").write_text("12345")
    (workspace / "a/deep").mkdir(parents=True)
    (workspace / "a/deep/x.py").touch()
    (workspace / ".git").mkdir()
    (workspace / ".git/config").touch()
    (workspace / "link").symlink_to("/etc")
    assert inside.list_files(".", 99, 4000, recursive=False).splitlines() == [".git/", "a/", "b.txt  5 B", "link -> /etc"]
    assert inside.list_files(".", 99, 4000, recursive=True).splitlines()[2:4] == ["a/deep/", "a/deep/x.py  0 B"]  # nothing of .git
    assert inside.list_files("./a", 99, 4000, recursive=False) == "a/deep/"
    assert inside.list_files("./a/deep", 99, 4000, recursive=False) == "a/deep/x.py  0 B"
    assert inside.list_files(".", 2, 4000, recursive=False).endswith("[2 of 4 entries; list a subdirectory, or set limit]")
    with pytest.raises(Refused, match="No such file"):
        inside.list_files("./none", 9, 99, recursive=False)


def test_list_of_nothing_and_of_odd_names(workspace: Path) -> None:
    assert inside.list_files(".", 9, 99, recursive=True) == "(empty directory)"
    (workspace / os.fsdecode(b"bad\xff")).touch()
    assert inside.list_files(".", 9, 99, recursive=True) == "bad�  0 B"


def test_a_name_can_not_pose_as_several_entries(workspace: Path) -> None:
    (workspace / "a  1 B\nb\x1b[2J").touch()
    (workspace / "link").symlink_to("to\nwhere é")
    assert inside.list_files(".", 100, 10_000, recursive=False).splitlines() == ["a  1 B\\nb\\x1b[2J  0 B", "link -> to\\nwhere é"]
    with pytest.raises(Refused, match=r"has: a  1 B\\nb"):
        inside.read("missing", 1, 10, 1000)


def test_search(workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src/a.py").write_text("import os\n\ndef main() -> None:\n    return os\n")
    (workspace / "notes.md").write_text("main idea\n")
    (workspace / "binary").write_bytes(b"main\0")
    assert inside.search(".", r"\bmain\b", None, 50, 4000).splitlines() == ["notes.md:1: main idea", "src/a.py:3: def main() -> None:"]
    assert inside.search(".", "main", "*.py", 50, 4000) == "src/a.py:3: def main() -> None:"
    assert inside.search(".", "main", "src/*", 50, 4000) == "src/a.py:3: def main() -> None:"
    assert inside.search("notes.md", "idea", None, 50, 4000) == "notes.md:1: main idea"
    assert inside.search(".", "absent", None, 50, 4000) == "(no matches)"
    assert "[first 1 matches" in inside.search(".", "main", None, 1, 4000)
    with pytest.raises(Refused, match="no valid regular expression"):
        inside.search(".", "(", None, 50, 4000)


def test_size(workspace: Path) -> None:
    (workspace / "a").write_bytes(b"x" * 10)
    assert inside.size("a") == "10"
    with pytest.raises(Refused):
        inside.size("b")
