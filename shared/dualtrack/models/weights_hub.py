"""Weights from a Hugging Face hub, or a mirror that `HF_ENDPOINT` names, by plain HTTPS with resumption."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import ModelError, ModelUnavailable

_HUB: Final = "https://huggingface.co"
_BLOCK: Final = 1024 * 1024
_TIMEOUT_S: Final = 30.0
_MAX_BYTES: Final = 200 * 1024**3


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a hub repository's main branch."""

    repository: str
    path: str
    sha256: str | None
    """Checked where it is given."""


def fetch(file: HubFile, target: Path, environment: Mapping[str, str], report: Callable[[int, int], None]) -> None:
    """Download to `target` in one move at the end; what a broken download left is gone on with. `HF_TOKEN` is sent where it is set.

    Raises:
        ModelUnavailable: the hub can't be reached, does not have the file, or it has the wrong hash.
        ModelError: there is not enough disk space.
    """
    import httpx

    url = f"{(environment.get('HF_ENDPOINT') or _HUB).rstrip('/')}/{file.repository}/resolve/main/{file.path}"
    partial = target.with_name(f"{target.name}.partial")
    have = partial.stat().st_size if partial.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    if token := environment.get("HF_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    try:
        with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=_TIMEOUT_S) as response:
            if response.status_code not in {HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT}:
                raise ModelUnavailable(f"The model hub answered {response.status_code} for {url}.")
            done = have if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
            total = done + int(response.headers.get("content-length", 0))
            _need_space(target, total - done)
            with partial.open("ab" if done else "wb") as sink:
                for block in response.iter_bytes(_BLOCK):
                    sink.write(block)
                    done += len(block)
                    report(done, max(total, done))
                sink.flush()
                os.fsync(sink.fileno())
    except httpx.HTTPError as error:
        raise ModelUnavailable(f"The model hub could not be reached at {url} ({type(error).__name__}).") from error
    if file.sha256 is not None and _sha256(partial) != file.sha256:
        partial.unlink()
        raise ModelUnavailable(f"{url} has the wrong hash; the download was thrown away.")
    partial.replace(target)


def _need_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if not needed < min(free, _MAX_BYTES):
        raise ModelError(f"{target.name} has {needed / 1e9:.1f} GB, and {target.parent} has {free / 1e9:.1f} GB free: make room.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
