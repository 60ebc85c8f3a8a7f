"""Paths inside a workspace: always relative, always `/`-separated, never leaving it."""

from __future__ import annotations

import re
from typing import Final

from dualtrack.domain.errors import InvalidPath

MAX_PATH_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 255  # NAME_MAX of every common file system
_WORKSPACE_PREFIX: Final = "/workspace"
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of text around: with them `exe.txt` can be shown for `txt.exe`."""


def workspace_path(text: str, *, param: str = "path") -> str:
    """The normal form of a path inside the workspace.

    Takes `a/b.txt`, `./a/b.txt` and, since that is where the sandbox shows it, `/workspace/a/b.txt`. The workspace itself is `.`.

    Raises:
        InvalidPath: for `..`, other absolute paths, control and direction-changing characters, or names longer than a file system holds.
    """
    if CONTROL.search(text):
        raise InvalidPath("A path must not hold characters that control the terminal or the direction of text.", param=param)
    if not text.strip():
        raise InvalidPath("A path must not be empty.", param=param)
    if text == _WORKSPACE_PREFIX or text.startswith(_WORKSPACE_PREFIX + "/"):
        text = text[len(_WORKSPACE_PREFIX) :].lstrip("/") or "."
    if text.startswith("/"):
        raise InvalidPath(f"{text!r} is outside the workspace: give a path relative to it, such as 'data/orders.csv'.", param=param)
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise InvalidPath(f"{text!r} leaves the workspace: '..' is not allowed.", param=param)
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError as error:
        raise InvalidPath("A path must be valid UTF-8.", param=param) from error
    if any(len(part) > MAX_NAME_BYTES for part in encoded) or sum(len(part) + 1 for part in encoded) > MAX_PATH_BYTES:
        raise InvalidPath(f"A path may have {MAX_PATH_BYTES} bytes, each name {MAX_NAME_BYTES}.", param=param)
    return "/".join(parts) or "."


def file_name(text: str, *, param: str = "filename") -> str:
    """A plain file name, as an upload may carry it.

    Raises:
        InvalidPath: when it holds a separator, is `.` or `..`, or is no valid workspace path.
    """
    if "/" in text or "\\" in text or text in {".", ".."}:
        raise InvalidPath(f"{text!r} is not a plain file name: leave out directories.", param=param)
    return workspace_path(text, param=param)
