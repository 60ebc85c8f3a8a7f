"""HTTP to the router: the key, the errors, the pages, the streams. Nothing else in this package knows httpx."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self
from urllib.parse import urljoin, urlsplit

import httpx

from cli.credentials import Credentials
from cli.outcome import ApiError, Unreachable, UsageProblem
from cli.sse import ServerEvent, SSEParser, StreamBroken

Params = Sequence[tuple[str, str]]

_TIMEOUT: Final = httpx.Timeout(60, connect=10)
STREAM_SILENCE_S: Final = 60.0
"""Silence after which a stream counts as dead; the server sends a sign of life every 15 s."""
CHAT_SILENCE_S: Final = 600.0
"""A chat stream is silent while the model reads the prompt, which a model on a CPU may do for minutes."""
_UPLOAD_SILENCE_S: Final = 600.0
"""The server answers once a large file is hashed and stored."""
_MAX_JSON_BYTES: Final = 64 * 1024 * 1024
_MAX_ERROR_BYTES: Final = 64 * 1024
_MAX_REDIRECTS: Final = 3
_MOST_DIGITS: Final = 8
"""Of a number of seconds to wait."""
_TRIES: Final = 3
_ELSEWHERE: Final = (
    "The platform redirects downloads there (DUALTRACK_OBJECTS__PUBLIC_ENDPOINT_URL, in the compose stack OBJECTS_URL): "
    "run the command where that address can be reached."
)
_PAGE: Final = 100


class ConnectionBroken(Unreachable):
    """A connection that was there and broke, or a server that is just restarting: trying again is worth it."""


class Client:
    """One connection pool to one router. Every method raises `ApiError` or `Unreachable`.

    Raises (when made):
        UsageProblem: the address, or the proxy and certificates that the environment names, can't be used.
    """

    def __init__(self, credentials: Credentials, *, version: str, transport: httpx.BaseTransport | None = None) -> None:
        self.credentials: Final = credentials
        host = urlsplit(credentials.base_url).hostname or ""
        try:
            httpx.URL(credentials.base_url)
            self._http = httpx.Client(
                timeout=_TIMEOUT,
                headers={"user-agent": f"dualtrack-cli/{version}"},
                transport=transport,
                # A proxy from the environment can't reach this machine's own loopback address for us.
                trust_env=not (host == "localhost" or host.startswith("127.") or host == "::1"),
            )
        except (httpx.InvalidURL, ValueError, OSError, ImportError) as error:
            raise UsageProblem(
                f"No connection to {credentials.base_url} can be set up ({error}): check the address and, where they are set, "
                "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE and SSL_CERT_DIR."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def get(self, path: str, params: Params = ()) -> dict[str, Any]:
        """A JSON document; tried again where the connection breaks."""
        return self._json("GET", path, params=params, tries=_TRIES)

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, idempotency_key: str | None = None, slow: bool = False
    ) -> dict[str, Any]:
        """Post JSON and get JSON; tried again only under an idempotency key. `slow`: a model answers, so wait longer."""
        headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
        timeout = httpx.Timeout(CHAT_SILENCE_S, connect=10) if slow else _TIMEOUT
        return self._json("POST", path, body=body, headers=headers, tries=1 if idempotency_key is None else _TRIES, timeout=timeout)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change a resource; tried again where the connection breaks, since doing it twice changes nothing."""
        return self._json("PATCH", path, body=body, tries=_TRIES)

    def delete(self, path: str) -> dict[str, Any]:
        """Remove a resource. Not tried again: the second time it would be unknown."""
        return self._json("DELETE", path, tries=1)

    def pages(self, path: str, params: Params = (), *, limit: int | None = None) -> dict[str, Any]:
        """A list: its first `limit` rows (None: all of them), with as many requests as that takes."""
        rows: list[Any] = []
        after: str | None = None
        while True:
            count = _PAGE if limit is None else min(limit - len(rows), _PAGE)
            page = self.get(path, [*params, ("limit", str(count)), *([("after", after)] if after else [])])
            data = page.get("data")
            if not isinstance(data, list):
                raise ApiError(f"{path} did not answer with a list.", status=0, code="bad_answer")
            rows += data
            cursor = page.get("next_cursor")
            more = bool(page.get("has_more")) and isinstance(cursor, str | int) and str(cursor) != after and bool(data)
            if not more or (limit is not None and len(rows) >= limit):
                return {"object": "list", "data": rows, "has_more": more, "next_cursor": cursor if more else None}
            after = str(cursor)

    def upload(self, path: Path, *, name: str, idempotency_key: str | None = None) -> dict[str, Any]:
        """Upload a file under `name`, streamed from disk; the same key, name and content give the same file."""
        headers = {} if idempotency_key is None else {"idempotency-key": idempotency_key}
        timeout = httpx.Timeout(_UPLOAD_SILENCE_S, connect=10)
        try:
            with (
                path.open("rb") as file,
                self._open("POST", "/v1/files", files={"file": (name, file)}, headers=headers, timeout=timeout) as response,
            ):
                return _document(response)
        except OSError as error:
            raise UsageProblem(f"{path} can't be read: {error.strerror or error}.") from error

    @contextmanager
    def download(self, path: str) -> Iterator[httpx.Response]:
        """An open response whose body has not been read; redirects are followed, the key stays with this server."""
        url = self._url(path)
        for _ in range(_MAX_REDIRECTS + 1):
            with self._open("GET", url) as response:
                if not response.is_redirect:
                    yield response
                    return
                next_url = _redirect(url, response.headers.get("location", ""))
                if next_url is None:
                    break
                url = next_url
        raise ApiError("The download was redirected to no usable address.", status=0, code="bad_redirect")

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params = (),
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        silence_s: float = STREAM_SILENCE_S,
    ) -> Iterator[Iterator[ServerEvent]]:
        """Server-sent events, until the server ends the stream; `ConnectionBroken` when it is cut."""
        asked = {"accept": "text/event-stream", **(headers or {})}
        timeout = httpx.Timeout(silence_s, connect=10)
        with self._open(method, path, params=params, body=body, headers=asked, timeout=timeout) as response:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise ApiError(
                    f"Expected an event stream, got {kind or 'no content type'}: is the base URL right?", status=0, code="bad_answer"
                )
            yield self._events(response)

    def _events(self, response: httpx.Response) -> Iterator[ServerEvent]:
        parser = SSEParser()
        with self._translated(str(response.url)):
            try:
                for chunk in response.iter_bytes():
                    yield from parser.feed(chunk)
            except StreamBroken as error:
                raise ApiError(f"The event stream can't be read: {error}.", status=0, code="bad_answer") from error

    def _json(
        self,
        method: str,
        path: str,
        *,
        tries: int,
        params: Params = (),
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> dict[str, Any]:
        for left in range(tries - 1, -1, -1):
            try:
                with self._open(method, path, params=params, body=body, headers=headers, timeout=timeout) as response:
                    return _document(response)
            except ConnectionBroken:
                if not left:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    @contextmanager
    def _open(
        self,
        method: str,
        path: str,
        *,
        params: Params = (),
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
        files: Mapping[str, tuple[str, IO[bytes]]] | None = None,
    ) -> Iterator[httpx.Response]:
        url = self._url(path)
        sent = dict(headers or {})
        if self.credentials.api_key and _origin(url) == _origin(self.credentials.base_url):
            sent["authorization"] = f"Bearer {self.credentials.api_key}"
        with (
            self._translated(url),
            self._http.stream(method, url, params=list(params) or None, json=body, headers=sent, timeout=timeout, files=files) as response,
        ):
            if response.is_error:
                raise _error(response)
            yield response

    def _url(self, path: str) -> str:
        return path if path.startswith(("http://", "https://")) else self.credentials.base_url + path

    @contextmanager
    def _translated(self, url: str) -> Iterator[None]:
        """Errors of a request to `url` as ours; they name the server that failed, which after a redirect is another one."""
        own = _origin(url) == _origin(self.credentials.base_url)
        where = self.credentials.base_url if own else _server(url)
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            ask = "Is the platform running (make run)? Is --base-url right?" if own else _ELSEWHERE
            raise Unreachable(f"Can't reach {where} ({error or type(error).__name__}). {ask}") from error
        except httpx.TimeoutException as error:
            raise ConnectionBroken(f"{where} did not answer in time.") from error
        except httpx.TransportError as error:
            raise ConnectionBroken(f"The connection to {where} broke: {error or type(error).__name__}.") from error
        except (httpx.InvalidURL, httpx.StreamError, httpx.DecodingError) as error:
            raise ApiError(f"{where} gave an answer that can't be read: {error}.", status=0, code="bad_answer") from error


def _redirect(url: str, location: str) -> str | None:
    """The address that `location` leads to from `url`; None where it is none."""
    try:
        found = urljoin(url, location)
        _origin(found)
        httpx.URL(found)
        (urlsplit(found).hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL):
        return None
    return found if location and urlsplit(found).scheme in {"http", "https"} else None


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)


def _server(url: str) -> str:
    """An address without path and query, where a presigned one carries its signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _body(response: httpx.Response, limit: int) -> bytes:
    found = bytearray()
    for chunk in response.iter_bytes():
        found += chunk
        if len(found) > limit:
            raise ApiError(f"The server's answer is larger than {limit} bytes.", status=response.status_code, code="bad_answer")
    return bytes(found)


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = json.loads(_body(response, _MAX_JSON_BYTES))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise ApiError("The server's answer is no JSON object: is this a Dualtrack server?", status=response.status_code, code="bad_answer")
    return document


def _error(response: httpx.Response) -> ApiError:
    status = response.status_code
    try:
        found = json.loads(_body(response, _MAX_ERROR_BYTES))["error"]
        message, code, kind, param = (found.get(name) for name in ("message", "code", "type", "param"))
    except (ApiError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = code = kind = param = None
    return ApiError(
        str(message or f"The server answered with HTTP {status} {response.reason_phrase}."),
        status=status,
        code=str(code or f"http_{status}"),
        kind=str(kind or "api_error"),
        param=None if param is None else str(param),
        retry_after=_seconds(response.headers.get("retry-after", "")),
    )


def _seconds(text: str) -> int | None:
    """`Retry-After` as a number of seconds; None where it is none, or a date."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None
