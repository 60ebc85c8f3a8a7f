"""The `Content-Disposition` header of a download (RFC 6266, with RFC 8187 for names beyond ASCII)."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

_MAX_NAME: Final = 255
_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(?:; ?[A-Za-z0-9-]{1,40}=[A-Za-z0-9._-]{1,60})*")


def attachment(filename: str) -> str:
    """A header value that makes a client save the download under that name; nothing in the name can break out of the header."""
    name = re.sub(r"[\x00-\x1f\x7f/\\]", "_", filename)[:_MAX_NAME] or "download"
    plain = re.sub(r'[^\x20-\x7e]|["%]', "_", name)
    extended = quote(name.encode("utf-8", "replace"), safe="!#$&+-.^_`|~")
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{extended}"


def safe_content_type(content_type: str) -> str:
    """The content type if it is well formed, `application/octet-stream` otherwise."""
    return content_type if _CONTENT_TYPE.fullmatch(content_type) else "application/octet-stream"
