"""The local model for one process: a server subprocess, started at first use, started again if it died."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

from dualtrack.domain.errors import ModelUnavailable
from dualtrack.models.local import KEY_VARIABLE, need_runtime
from dualtrack.models.weights import Progress, fetch_weights, local_cache
from dualtrack.settings import LocalModelSettings

_STOP_S: Final = 10
_LOAD_S: Final = 300


class Access(NamedTuple):
    """Where a model server is, and the key it asks for."""

    base_url: str
    api_key: str


class LocalModelServer:
    """Starts, watches and stops the subprocess. Thread-safe; also a context manager that stops it."""

    def __init__(self, settings: LocalModelSettings, *, progress: Progress | None = None) -> None:
        self._settings = settings
        self._progress = progress
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._access: Access | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The running subprocess, if there is one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ensure(self) -> Access:
        """The server's address and key; fetches the weights and starts it where needed (blocking: seconds, or minutes the first time).

        Raises:
            ModelError: the runtime is missing or there is no room for the weights.
            ModelUnavailable: the weights can't be fetched, or the server does not start.
        """
        with self._lock:
            if self._access is not None and self.pid is not None:
                return self._access
            self._close()
            self._access = self._start()
            return self._access

    def stop(self) -> None:
        """Stop the subprocess, if it runs. The next `ensure` starts another."""
        with self._lock:
            self._close()

    def _start(self) -> Access:
        need_runtime()
        settings = self._settings
        weights = fetch_weights(settings.source, local_cache(settings.cache), environment=os.environ, progress=self._progress)
        key = secrets.token_urlsafe(24)
        command = [sys.executable, "-m", "dualtrack.models.local", "--until-eof", "--model", str(weights), "--port", "0"]
        command += ["--context-tokens", str(settings.context_tokens), "--slots", str(settings.slots)]
        command += ["--threads", str(settings.threads)] if settings.threads else []
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, KEY_VARIABLE: key}
        )
        self._process = process
        complaints = _Tail(process.stderr)
        overdue = threading.Timer(_LOAD_S, process.kill)
        overdue.start()
        try:
            line = process.stdout.readline() if process.stdout else ""
        finally:
            overdue.cancel()
        try:
            return Access(base_url=json.loads(line)["base_url"], api_key=key)
        except (ValueError, KeyError) as error:
            self._close()
            raise ModelUnavailable(f"The local model's server did not start: {complaints.text() or 'it ended without a word'}") from error

    def _close(self) -> None:
        process, self._process, self._access = self._process, None, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


class _Tail:
    """Drains a stream for as long as it lives, so that its writer never blocks, and keeps the last lines."""

    _LINES: Final = 20

    def __init__(self, stream: IO[str] | None) -> None:
        self._lines: list[str] = []
        self._thread = threading.Thread(target=self._drain, args=(stream,), name="local-model-stderr", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """The last lines; the writer must have ended."""
        self._thread.join(timeout=5)
        return " ".join(self._lines)[-1000:]

    def _drain(self, stream: IO[str] | None) -> None:
        if stream is None:
            return
        with stream:
            for line in stream:
                self._lines = [*self._lines[1 - self._LINES :], line.strip()]
