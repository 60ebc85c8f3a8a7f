"""What a request asks for, understood in one way or refused: odd spellings make one program see another request than the next."""

from __future__ import annotations

import re
from typing import Final

import h11

from dualtrack.domain.egress import EgressReason
from dualtrack.domain.hosts import split
from dualtrack.domain.limits import EgressLimits
from dualtrack.egress.broker import Origin
from dualtrack.egress.http import field
from dualtrack.egress.refusal import Refusal

HTTP_PORT: Final = 80
TLS_PORT: Final = 443
"""What goes through these two is HTTP or TLS, and nothing else."""
METHOD: Final = re.compile(rb"[A-Z][A-Z-]{0,31}")
_ABSOLUTE: Final = re.compile(rb"(?i)(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


def check(request: h11.Request, limits: EgressLimits) -> None:
    """Refuse a head that is too much, or that programs may understand differently. Raises `Refusal`."""
    headers = request.headers
    if not METHOD.fullmatch(request.method):
        raise bad("the method is none")
    if len(headers) > limits.head_fields or len(request.target) + sum(len(n) + len(v) for n, v in headers) > limits.head_bytes:
        raise Refusal(
            431, EgressReason.BAD_REQUEST, f"A request may have {limits.head_fields} headers and {limits.head_bytes} bytes of them."
        )
    if field(headers, b"transfer-encoding") and (field(headers, b"content-length") or request.http_version < b"1.1"):
        raise bad("Transfer-Encoding and Content-Length must not come together")
    for host in field(headers, b"host"):
        named(host, HTTP_PORT)


def named(authority: bytes, default_port: int | None = None) -> tuple[str, int]:
    """A host and its port. Raises `Refusal`."""
    try:
        return split(authority.decode(), default_port)
    except ValueError as error:
        raise bad(str(error)) from error


def destination(request: h11.Request, fixed: Origin | None) -> tuple[Origin, bytes]:
    """Where a request goes, and its path with its query. Raises `Refusal`."""
    target = bytes(request.target)
    hosts = field(request.headers, b"host")
    found = _ABSOLUTE.fullmatch(target)
    if found is None:
        if fixed is None:
            raise bad("this is a proxy: ask it for http://host/path, or for a tunnel by CONNECT")
        if not hosts:
            raise bad("it names no host")
        origin = Origin(fixed.scheme, *named(hosts[0], TLS_PORT if fixed.scheme == "https" else HTTP_PORT))
    else:
        scheme = found["scheme"].decode().lower()
        if scheme != (fixed.scheme if fixed else "http"):
            raise bad(f"{scheme}:// is not served here; https goes through a tunnel by CONNECT")
        origin = Origin(scheme, *named(found["authority"], TLS_PORT if scheme == "https" else HTTP_PORT))
        target = found["rest"].partition(b"#")[0]
        target = target if target.startswith(b"/") else b"/" + target
    if fixed is not None and (origin.host, origin.port) != (fixed.host, fixed.port):
        raise Refusal(421, EgressReason.HOST_MISMATCH, f"This tunnel leads to {fixed.authority} and nowhere else.")
    if not target.startswith(b"/") and not (target == b"*" and request.method == b"OPTIONS"):
        raise bad("its address is no path")
    return origin, target


def bad(problem: str) -> Refusal:
    """A request that can't be understood, or in more than one way."""
    return Refusal(400, EgressReason.BAD_REQUEST, f"The request is not understood: {problem}.")
