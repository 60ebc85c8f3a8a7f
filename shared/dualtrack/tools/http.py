"""`http_request`: the one built-in tool that changes the world outside."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from dualtrack.domain.errors import AddressRefused, AnswerBroken, HostUnreachable
from dualtrack.domain.tool import Effect, Observation, ToolSpec
from dualtrack.net import guard, target
from dualtrack.net.addresses import AllowList
from dualtrack.tools.port import ToolContext, ToolResult
from dualtrack.tools.rendering import refusal, text_of
from dualtrack.tools.schema import schema

KEY_HEADER: Final = "Idempotency-Key"
_OURS: Final = frozenset({"host", "content-length", "connection", "transfer-encoding", KEY_HEADER.lower()})
_SAFE: Final = frozenset({"GET", "HEAD"})
"""Methods that change nothing (RFC 9110, 9.2.1): a lost answer is an observation, not a doubt."""
_TIMEOUT_S: Final = 30.0
_MAX_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.05
_BODY_CHARS: Final = 100_000


class HttpRequest:
    """Sends one request to a host that the operator named, with the call's idempotency key. Never follows a redirect."""

    spec = ToolSpec(
        "http_request",
        "Send one HTTP request to a host the operator allows and return status and body. It carries an Idempotency-Key header by itself.",
        schema(
            {"url": {"type": "string", "minLength": 1, "maxLength": 2048}},
            {
                "method": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]},
                "headers": {"type": "object", "maxProperties": 32, "additionalProperties": {"type": "string", "maxLength": 4096}},
                "body": {"type": "string", "maxLength": _BODY_CHARS},
                "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": _MAX_TIMEOUT_S},
            },
        ),
        Effect.EXTERNAL,
    )

    def __init__(self, hosts: Sequence[str], allow: AllowList) -> None:
        """`hosts`: patterns of names, with a port where it is not the scheme's own; `allow`: which of them may be private addresses."""
        self._hosts = tuple(host.lower() for host in hosts)
        self._allow = allow

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """See `Tool.run`.

        Raises:
            AnswerBroken: the request was sent and its answer never came, or the call was cancelled meanwhile; not for safe methods.
        """
        method = arguments.get("method", "GET")
        try:
            self._permit(arguments["url"])
            headers = _headers(arguments.get("headers", {}))
            answer = self._send(method, arguments, headers | {KEY_HEADER: context.idempotency_key}, context)
        except (AddressRefused, HostUnreachable) as error:
            return refusal(f"Nothing was sent: {error.message}")
        except AnswerBroken as error:
            if method in _SAFE:
                return refusal(error.message)
            raise
        text = text_of(answer.body)
        if answer.truncated:
            text += f"\n[cut after {len(answer.body)} bytes]"
        kind = answer.headers.get("content-type", "no content type")
        details = {"status": answer.status, "bytes": len(answer.body)}
        return ToolResult(Observation(ok=answer.status < 400, text=f"HTTP {answer.status}, {kind}\n{text}".rstrip()), details=details)  # noqa: PLR2004 - the first status that is an error

    def _permit(self, url: str) -> None:
        """Raise `AddressRefused` unless the operator named the host."""
        place = target.parse(url)
        names = {place.authority.lower(), f"{place.host}:{place.port}".lower()}
        if not any(fnmatchcase(name, pattern) for name in names for pattern in self._hosts):
            raise AddressRefused(f"{place.authority} is not among the hosts that may be called: {', '.join(self._hosts)}.", param="url")

    def _send(self, method: str, arguments: Mapping[str, Any], headers: Mapping[str, str], context: ToolContext) -> guard.Response:
        """The answer; a request that is under way when the call is cancelled is left to itself."""
        done: list[guard.Response | Exception] = []

        def send() -> None:
            try:
                done.append(
                    guard.request(
                        method,
                        arguments["url"],
                        headers=headers,
                        body=arguments.get("body", "").encode(),
                        timeout_s=float(arguments.get("timeout_s", _TIMEOUT_S)),
                        max_bytes=context.limits.observation_bytes,
                        allow=self._allow,
                    )
                )
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
                done.append(error)

        thread = threading.Thread(target=send, name="http-request", daemon=True)
        thread.start()
        while thread.is_alive() and not context.cancel.is_set():
            thread.join(_POLL_S)
        if not done:
            raise AnswerBroken("The call was stopped while its request was under way: it may have been carried out.")
        if isinstance(done[0], Exception):
            raise done[0]
        return done[0]


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    for name in given:
        if name.lower() in _OURS:
            raise AddressRefused(f"The header {name} is set by the platform; leave it out.", param="headers")
    return dict(given)
