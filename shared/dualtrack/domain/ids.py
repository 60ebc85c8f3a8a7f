"""Ids: a prefix that names the kind, then a UUIDv7 in 26 characters of Crockford's base 32, so that ids sort by time of creation.

UUIDv7: RFC 9562, section 5.7 (48 bits of Unix milliseconds, then version, variant and 74 random bits).
"""

from __future__ import annotations

import os
import re
import time
from typing import Final, Literal

Kind = Literal["job", "call", "file", "art", "key", "appr", "ten", "req", "chatcmpl", "wh", "msg", "sched"]

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH: Final = 26
_LAST_MS: Final = (1 << 48) - 1
_PATTERN: Final = re.compile(r"^[a-z]{2,8}_[0-9a-hjkmnp-tv-z]{26}$")


def new_id(kind: Kind) -> str:
    """A new id such as `job_01k9…`; unique without coordination, increasing by the millisecond."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & _LAST_MS) << 80 | 0x7 << 76 | ((random >> 62) & 0xFFF) << 64
    value |= 0b10 << 62 | (random & ((1 << 62) - 1))
    return _written(kind, value)


def first_id(kind: Kind, unix_s: float) -> str:
    """What no id of that kind made at that time or later sorts before, and none made earlier behind."""
    return _written(kind, min(max(int(unix_s * 1000), 0), _LAST_MS) << 80)


def _written(kind: Kind, value: int) -> str:
    digits = []
    for _ in range(_LENGTH):
        value, digit = divmod(value, 32)
        digits.append(_ALPHABET[digit])
    return f"{kind}_{''.join(reversed(digits))}"


def is_id(text: str, kind: Kind) -> bool:
    """Whether `text` has the form of an id of that kind."""
    return text.startswith(f"{kind}_") and _PATTERN.match(text) is not None
