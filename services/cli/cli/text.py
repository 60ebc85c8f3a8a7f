"""Text from a server or a model, made safe for a terminal."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Final

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\))")
"""Control sequences (ECMA-48 CSI, such as colours) and operating system commands (OSC, such as titles and links)."""
_BIDI: Final = "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"
"""Marks that reorder text on screen, so that what is read isn't what is there (CVE-2021-42574)."""
_UNSAFE: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
_UNSAFE_IN_JSON: Final = re.compile(rf"[\x7f-\x9f\u2028\u2029{_BIDI}\ud800-\udfff]")
_PICTURES: Final = 0x2400
"""Unicode's block of visible pictures of the control characters, in their order."""
_DELETE: Final = 0x7F


def _visible(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:  # noqa: PLR2004 - the C0 set ends there
        return chr(_PICTURES + code)
    return "\u2421" if code == _DELETE else "\ufffd"


def clean(text: object) -> str:
    """`text` without anything that could steer a terminal; line feeds and tabs stay.

    Colour codes and the like are taken out, other control characters become visible pictures of themselves.
    """
    plain = _ANSI.sub("", str(text)).replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(_visible, plain)


def one_line(text: object, width: int = 100) -> str:
    """`clean(text)` on one line of at most `width` characters, spaces folded, an ellipsis where it was cut."""
    folded = " ".join(clean(text).split())
    return folded if len(folded) <= width else folded[: max(width - 1, 0)] + "…"


def preview(text: object, *, lines: int, width: int) -> list[str]:
    """The first `lines` lines of `clean(text)`, each cut to `width`, and one more that says how many were left out."""
    found = [line.rstrip() for line in clean(text).expandtabs(4).strip("\n").splitlines()]
    shown = [line if len(line) <= width else line[: width - 1] + "…" for line in found[:lines]]
    if len(found) > lines:
        left = len(found) - lines
        shown.append(f"… {left} more {'line' if left == 1 else 'lines'}")
    return shown


def to_json(value: object, *, indent: int | None = None) -> str:
    """`value` as JSON that is safe to show: everything `clean` would touch is escaped, so nothing is lost."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", json.dumps(value, ensure_ascii=False, indent=indent))


def clock(seconds: float) -> str:
    """A duration as `m:ss` or `h:mm:ss`."""
    whole = max(int(seconds), 0)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """A duration for a sentence: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 10:  # noqa: PLR2004 - tenths matter only below
        return f"{max(seconds, 0):.1f} s"
    whole = timedelta(seconds=int(seconds))
    minutes, rest = divmod(whole.days * 86_400 + whole.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def moment(text: object) -> datetime | None:
    """A time as the API writes it (RFC 3339); None for anything else, and for a time without a zone."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def size(count: object) -> str:
    """A number of bytes for a person: `812 B`, `4.2 KiB`."""
    value = float(count) if isinstance(count, int | float) else 0.0
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:  # noqa: PLR2004 - the step between two units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def money(amount: object) -> str:
    """US dollars as the API gives them (a decimal string), without rounding a small price to nothing."""
    text = one_line(amount, 24) or "0"
    return f"${text}"
