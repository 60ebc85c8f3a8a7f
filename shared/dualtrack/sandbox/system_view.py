"""What sandboxes see of this machine's own system, the same on every rung that shows it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dualtrack.domain.limits import MIB

SANDBOX_ID: Final = 1000
"""User and group inside the sandbox, whoever runs it outside."""

PASSWD: Final = b"sandbox:x:1000:1000:sandbox:/workspace:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
GROUP: Final = b"sandbox:x:1000:\nnogroup:x:65534:\n"

TMP_BYTES: Final = 256 * MIB
SHM_BYTES: Final = 64 * MIB
SYSTEM_DIRECTORIES: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Beside /usr: links into it, or directories of their own."""
ETC: Final = ("alternatives", "ld.so.cache", "ssl/certs", "localtime")
"""What is shown of /etc, as far as it is there."""

_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")


def environment(interpreter: Path | None, further: Mapping[str, str]) -> dict[str, str]:
    """The whole environment inside.

    Args:
        interpreter: prefix of a Python installation outside /usr to put on the PATH.
        further: more of it, which may also override the sandbox's own PATH, HOME, LANG and TMPDIR.
    """
    path = ":".join([f"{interpreter}/bin", *_PATH] if interpreter else _PATH)
    return {"PATH": path, "HOME": "/workspace", "LANG": "C.UTF-8", "TMPDIR": "/tmp", **further}  # noqa: S108 - the sandbox's own
