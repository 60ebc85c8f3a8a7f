"""Taking secrets out of what a server answers, should it echo them: a search and replace over a stream."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from urllib.parse import quote


def spellings(value: str) -> set[bytes]:
    """How a server may write a value without changing it: as it is, in JSON, in a URL, in base64."""
    plain = value.encode()
    texts = {
        plain,
        json.dumps(value)[1:-1].encode(),
        quote(value, safe="").encode(),
        base64.b64encode(plain),
        base64.urlsafe_b64encode(plain),
    }
    return {text.rstrip(b"=") if text != plain else text for text in texts}


class Redactor:
    """Replaces texts in a stream, however it is cut into pieces. Holds back no more than could be the beginning of one of them."""

    def __init__(self, replacements: Mapping[bytes, bytes]) -> None:
        """Takes what is to be replaced, each by what."""
        self._replacements = dict(replacements)
        needles = sorted(self._replacements, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(needle) for needle in needles)) if needles else None
        self._needles = needles
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The next piece; what of all pieces so far can be handed on."""
        if self._pattern is None:
            return data
        text = self._held + data
        done, rest = self._replaced(text)
        kept = self._beginning(rest)
        self._held = rest[len(rest) - kept :]
        return done + rest[: len(rest) - kept]

    def flush(self) -> bytes:
        """What was held back at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def whole(self, text: bytes) -> bytes:
        """A text that is no part of the stream."""
        if self._pattern is None:
            return text
        done, rest = self._replaced(text)
        return done + rest

    def _replaced(self, text: bytes) -> tuple[bytes, bytes]:
        """The text up to the end of the last match, replaced, and what follows it."""
        if self._pattern is None:
            return b"", text
        parts: list[bytes] = []
        position = 0
        for match in self._pattern.finditer(text):
            parts += [text[position : match.start()], self._replacements[match.group()]]
            position = match.end()
        return b"".join(parts), text[position:]

    def _beginning(self, text: bytes) -> int:
        """How many bytes at the end of a text may be the beginning of something to replace."""
        longest = 0
        for needle in self._needles:
            for size in range(min(len(needle) - 1, len(text)), longest, -1):
                if text.endswith(needle[:size]):
                    longest = size
                    break
        return longest
