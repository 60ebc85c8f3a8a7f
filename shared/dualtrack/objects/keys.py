"""What an object key may look like, for every store alike."""

from __future__ import annotations

import re
from typing import Final

from dualtrack.domain.errors import InvalidPath

MAX_KEY_CHARS: Final = 512
MAX_SEGMENT_CHARS: Final = 200
# No segment starts with a dot: neither `..` nor a store's own hidden files can be named.
_SEGMENT: Final = r"[A-Za-z0-9_=@+-][A-Za-z0-9._=@+-]*"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


def check_key(key: str) -> str:
    """The key itself, if it may be one.

    Raises:
        InvalidPath: it is empty, too long, or has characters or segments that not every store can hold.
    """
    if len(key) > MAX_KEY_CHARS or _KEY.fullmatch(key) is None or any(len(part) > MAX_SEGMENT_CHARS for part in key.split("/")):
        raise InvalidPath(
            f"{key[:MAX_KEY_CHARS]!r} is no object key: at most {MAX_KEY_CHARS} characters of A-Z a-z 0-9 . _ = @ + - in segments of at "
            f"most {MAX_SEGMENT_CHARS}, separated by single '/', none starting with a dot.",
            param="key",
        )
    return key
