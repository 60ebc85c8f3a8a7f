"""File operations, run *inside* the sandbox so that no symlink, FIFO or race in a workspace can reach the host.

The source of this module is given to the sandbox's own Python (3.8 or newer, isolated mode): standard library only, no imports from this
package. One request as JSON on stdin; the observation's text on stdout; exit status 0 for success, 3 for a refusal that the text explains.
"""

# Without pathlib: importing it is a third of what a file operation costs here.

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs as much again
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO

ROOT = "/workspace"
REFUSED = 3
KIB = 1024
EDIT_BYTES = 16 * 1024 * 1024
SEARCH_BYTES = 16 * 1024 * 1024
PROBE_BYTES = 8192
LINE_BYTES = 2000
MATCH_CHARS = 300
ENTRIES = 100_000
NEARBY = 12
SKIPPED = frozenset({".git", "__pycache__", "node_modules", ".venv"})


class Refused(Exception):
    """The request can't be carried out; the message is for the model."""


def size_text(size: int) -> str:
    """A size for reading."""
    if size < KIB:
        return f"{size} B"
    return f"{size / KIB:.4g} KiB" if size < KIB * KIB else f"{size / KIB / KIB:.5g} MiB"


def nearby(path: str) -> str:
    """What the nearest existing directory holds: most wrong paths are a wrong folder or a typing error."""
    folder = os.path.dirname(path) or "."
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder) or "."
    names = sorted(os.listdir(folder))
    shown = ", ".join(map(shown_name, names[:NEARBY])) + (", …" if len(names) > NEARBY else "")
    return f" {'The workspace' if folder == '.' else folder} has: {shown or 'nothing'}."


def regular(path: str) -> os.stat_result:
    """The status of a regular file, or a refusal that helps to find it."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}.{nearby(path)}") from error
    if stat.S_ISDIR(status.st_mode):
        raise Refused(f"{path} is a directory; use list_files.")
    if not stat.S_ISREG(status.st_mode):
        raise Refused(f"{path} is not a regular file.")
    return status


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends; of a very long one only the beginning is held in memory."""
    while line := file.readline(LINE_BYTES):
        rest = line
        cut = 0
        while not rest.endswith(b"\n") and (rest := file.readline(LINE_BYTES)):
            cut += len(rest.rstrip(b"\r\n"))
        text = line.rstrip(b"\r\n")
        yield text + f" [… line cut, {cut} more bytes]".encode() if cut else text


def read(path: str, offset_line: int, limit_lines: int, limit_chars: int) -> str:
    """Some lines of a text file, and how to read on."""
    status = regular(path)
    with open(path, "rb") as file:
        if b"\0" in file.read(PROBE_BYTES):
            raise Refused(f"{path} is a binary file of {size_text(status.st_size)}; use execute_python to read it.")
        file.seek(0)
        shown: list[str] = []
        chars = total = 0
        full = False
        for line in lines_of(file):
            total += 1
            if total < offset_line or full:
                continue
            text = line.decode("utf-8", "replace")
            if shown and (len(shown) >= limit_lines or chars + len(text) + 1 > limit_chars):
                full = True
                continue
            shown.append(text)
            chars += len(text) + 1
    if total == 0:
        return "(empty file)"
    if not shown:
        raise Refused(f"{path} has only {total} lines.")
    last = offset_line + len(shown) - 1
    if offset_line == 1 and last == total:
        return "\n".join(shown)
    more = f"; continue with offset_line={last + 1}" if last < total else ""
    return "\n".join([*shown, f"[lines {offset_line}-{last} of {total}{more}]"])


def write(path: str, content: str) -> str:
    """Create or replace a file, with the directories above it."""
    if os.path.exists(path):
        regular(path)
    data = content.encode()
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    except (FileExistsError, NotADirectoryError) as error:
        raise Refused(f"{path} can't be written: a file stands where a directory is needed.") from error
    except OSError as error:
        raise Refused(f"{path} can't be written: {error.strerror}.") from error
    return f"Wrote {path} ({size_text(len(data))}, {content.count(chr(10)) + (not content.endswith(chr(10)) and bool(content))} lines)."


def edit(path: str, old: str, new: str, *, replace_all: bool) -> str:
    """Replace an exact text."""
    if regular(path).st_size > EDIT_BYTES:
        raise Refused(f"{path} is larger than {size_text(EDIT_BYTES)}; use execute_python.")
    with open(path, "rb") as file:
        raw = file.read()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not UTF-8 text; use execute_python.") from error
    if old not in text and "\r\n" in text:
        old, new = (part.replace("\r\n", "\n").replace("\n", "\r\n") for part in (old, new))
    count = text.count(old)
    if count == 0:
        raise Refused(
            f"No match for `old` in {path}: it must be the exact text, with the same spaces and line breaks. Read the file first."
        )
    if count > 1 and not replace_all:
        raise Refused(f"`old` matches {count} times in {path}: add lines around it to make it unique, or set replace_all.")
    try:
        with open(path, "wb") as file:
            file.write(text.replace(old, new).encode())
    except OSError as error:
        raise Refused(f"{path} can't be written: {error.strerror}.") from error
    return f"Replaced {count} {'match' if count == 1 else 'matches'} in {path}."


def walk(path: str, *, recursive: bool) -> Iterator[os.DirEntry[str]]:
    """Entries in order of name, directories before what is in them; symlinks are not followed."""
    try:
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}.{nearby(path)}") from error
    stack = entries[::-1]
    count = 0
    while stack and count < ENTRIES:
        entry = stack.pop()
        count += 1
        yield entry
        if recursive and entry.name not in SKIPPED and entry.is_dir(follow_symlinks=False):
            try:
                with os.scandir(entry.path) as found:
                    stack += sorted(found, key=lambda entry: entry.name, reverse=True)
            except OSError:
                continue


def shown_name(name: str) -> str:
    """A name on one line, whatever bytes it holds: control characters as Python writes them, so that it can't pose as several."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(char if char.isprintable() or char == " " else char.encode("unicode_escape").decode() for char in text)


def shown_path(entry: os.DirEntry[str]) -> str:
    """The path as the model should use it."""
    return shown_name(entry.path[2:] if entry.path.startswith("./") else entry.path)  # noqa: FURB188 - removeprefix came with Python 3.9


def list_files(path: str, limit: int, limit_chars: int, *, recursive: bool) -> str:
    """Names and sizes."""
    shown: list[str] = []
    chars = total = 0
    for entry in walk(path, recursive=recursive):
        total += 1
        if entry.is_symlink():
            text = f"{shown_path(entry)} -> {shown_name(os.readlink(entry.path))}"
        elif entry.is_dir(follow_symlinks=False):
            text = f"{shown_path(entry)}/"
        else:
            text = f"{shown_path(entry)}  {size_text(entry.stat(follow_symlinks=False).st_size)}"
        if total == len(shown) + 1 and len(shown) < limit and (not shown or chars + len(text) + 1 <= limit_chars):
            shown.append(text)
            chars += len(text) + 1
    if total > len(shown):
        shown.append(f"[{len(shown)} of {total} entries; list a subdirectory, or set limit]")
    return "\n".join(shown) or "(empty directory)"


def search(path: str, pattern: str, glob: str | None, limit: int, limit_chars: int) -> str:
    """Lines that match a regular expression."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Refused(f"The pattern is no valid regular expression: {error}.") from error
    shown: list[str] = []
    chars = 0
    for name, number, text in matches(path, wanted, glob):
        line = f"{name}:{number}: {text.strip()[:MATCH_CHARS]}"
        if shown and (len(shown) >= limit or chars + len(line) + 1 > limit_chars):
            return "\n".join([*shown, f"[first {len(shown)} matches; narrow the pattern, path or glob for the others]"])
        shown.append(line)
        chars += len(line) + 1
    return "\n".join(shown) or "(no matches)"


def matches(path: str, wanted: re.Pattern[str], glob: str | None) -> Iterator[tuple[str, int, str]]:
    """Path, line number and line of each match; binary and very large files are left out."""
    if os.path.isfile(path):
        files: Iterator[tuple[str, str]] = iter([(path, path)])
    else:
        entries = walk(path, recursive=True)
        files = ((entry.path, shown_path(entry)) for entry in entries if entry.is_file(follow_symlinks=False))
    for real, name in files:
        if glob and not (fnmatch.fnmatch(name, glob) or fnmatch.fnmatch(os.path.basename(name), glob)):
            continue
        try:
            if os.stat(real).st_size > SEARCH_BYTES:
                continue
            with open(real, "rb") as file:
                if b"\0" in file.read(PROBE_BYTES):
                    continue
                file.seek(0)
                for number, line in enumerate(lines_of(file), 1):
                    text = line.decode("utf-8", "replace")
                    if wanted.search(text):
                        yield name, number, text
        except OSError:
            continue


def size(path: str) -> str:
    """The size of a regular file in bytes, as digits."""
    return str(regular(path).st_size)


OPERATIONS: dict[str, Callable[..., str]] = {"read": read, "write": write, "edit": edit, "list": list_files, "search": search, "size": size}


def main() -> int:
    """Carry out the request on stdin."""
    request: dict[str, Any] = json.load(sys.stdin)
    os.chdir(ROOT)
    try:
        text, status = OPERATIONS[request.pop("operation")](**request), 0
    except Refused as error:
        text, status = str(error), REFUSED
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    return status


if __name__ == "__main__":
    sys.exit(main())
