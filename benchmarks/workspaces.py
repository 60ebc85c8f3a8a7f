"""Saving and restoring workspaces of 10, 1,000 and 50,000 files, in an S3 server and in a folder: time, requests, bytes, memory.

Beside it, on the same files in the same run, what plain means cost: `tar` and one PUT, one GET and `tar -x`, `cp -r`, a walk with `lstat`.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import SecretStr

from dualtrack.domain.limits import PlatformLimits
from dualtrack.objects.folder import FolderStore
from dualtrack.objects.port import ObjectInfo, ObjectStore, StoredObject
from dualtrack.objects.s3 import S3Store
from dualtrack.objects.workspace import WorkspaceStore
from dualtrack.settings import S3Settings
from dualtrack.testing.servers import S3Server

_TENANT = "ten_bench"
_LIMITS = PlatformLimits(workspace_files=200_000)
_A_DIRECTORY = 100
_MEAN_BYTES = 2048
_MIB = 1024 * 1024
_SNAPSHOTS = {"first": "first snapshot", "same": "nothing changed", "one": "one file changed"}
_RESTORES = {"empty": "restore, empty directory", "hot": "restore, hot directory", "back": "restore, one file differs"}
_TITLES = _SNAPSHOTS | _RESTORES | {"tar": "tar, one PUT", "untar": "one GET, tar -x", "cp": "cp -r", "walk": "walk, lstat each"}
_FLOORS = {"first": "tar", "same": "walk", "one": "walk", "empty": "untar", "hot": "walk", "back": "walk"}

Figures = dict[str, float]
StoreOptions = dict[str, str]


class CountedStore:
    """An `ObjectStore` that counts requests and bytes and passes everything on to another."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.delete = store.delete
        self.keys = store.keys
        self.stored = store.stored
        self.presign = store.presign
        self.check = store.check
        self.requests: Counter[str] = Counter()
        self.sent = 0
        self.received = 0

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        """Counted."""
        self.requests["put"] += 1
        info = self._store.put(key, data, content_type=content_type)
        self.sent += info.size
        return info

    def get(self, key: str) -> bytes:
        """Counted."""
        self.requests["get"] += 1
        data = self._store.get(key)
        self.received += len(data)
        return data

    def part(self, key: str, *, start: int, size: int) -> bytes:
        """Counted."""
        self.requests["get"] += 1
        data = self._store.part(key, start=start, size=size)
        self.received += len(data)
        return data

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        """Counted."""
        self.requests["get"] += 1
        for chunk in self._store.stream(key, chunk_bytes=chunk_bytes):
            self.received += len(chunk)
            yield chunk

    def head(self, key: str) -> StoredObject | None:
        """Counted."""
        self.requests["head"] += 1
        return self._store.head(key)


def fill(directory: Path, files: int, seed: int) -> None:
    """Small files of random text, a hundred to a directory."""
    made = random.Random(seed)
    directory.mkdir()
    for n in range(files):
        folder = directory / f"package_{n // _A_DIRECTORY:04}"
        if n % _A_DIRECTORY == 0:
            folder.mkdir()
        (folder / f"module_{n:06}.py").write_bytes(made.randbytes(int(made.expovariate(1 / _MEAN_BYTES))))


def change_one(directory: Path, text: str) -> None:
    """Another content for one file in the middle."""
    found = sorted(directory.rglob("*.py"))
    found[len(found) // 2].write_text(text)


def open_store(options: StoreOptions) -> ObjectStore:
    """The folder or server that the options tell of."""
    if "path" in options:
        return FolderStore(Path(options["path"]))
    secret = SecretStr(options["secret_access_key"])
    key = SecretStr(options["access_key_id"])
    return S3Store(
        S3Settings(driver="s3", bucket=options["bucket"], endpoint_url=options["endpoint_url"], access_key_id=key, secret_access_key=secret)
    )


def timed(store: CountedStore, act: Callable[[], object]) -> Figures:
    """Wall time and what was asked of the store."""
    store.requests.clear()
    store.sent = store.received = 0
    os.sync()  # what came before is not paid for here
    started = time.perf_counter()
    act()
    took = time.perf_counter() - started
    return {"ms": took * 1000, "requests": store.requests.total(), "sent": store.sent, "received": store.received}


def peak() -> int:
    """Bytes of this process's memory at their highest (`getrusage` gives its parent's before it became a program of its own)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def saver(options: StoreOptions, directory: Path) -> tuple[dict[str, Figures], str, str]:
    """One process's snapshots: the first, one of the same, one with a change; the ids of the first and the last."""
    counted = CountedStore(open_store(options))
    store = WorkspaceStore(counted, _TENANT, _LIMITS)
    digests: list[str | None] = [None]

    def save() -> None:
        digests.append(store.snapshot(directory, digests[-1]).digest)

    counted.head("warm")
    before = peak()
    found = {"first": timed(counted, save)}
    found["first"]["peak"] = peak() - before
    found["same"] = timed(counted, save)
    change_one(directory, f"changed {time.time_ns()}")
    found["one"] = timed(counted, save)
    return found, str(digests[1]), str(digests[3])


def restorer(options: StoreOptions, directory: Path, first: str, other: str) -> dict[str, Figures]:
    """Another process's restores: from nothing, of what is there, and of a snapshot that differs in one file."""
    counted = CountedStore(open_store(options))
    store = WorkspaceStore(counted, _TENANT, _LIMITS)
    directory.mkdir()
    counted.head("warm")
    before = peak()
    found = {"empty": timed(counted, lambda: store.restore(first, directory))}
    found["empty"]["peak"] = peak() - before
    found["hot"] = timed(counted, lambda: store.restore(first, directory))
    found["back"] = timed(counted, lambda: store.restore(other, directory))
    return found


def floors(options: StoreOptions, directory: Path, folder: Path) -> dict[str, Figures]:
    """The same files by plain means."""
    store = CountedStore(open_store(options))
    archive, copy = folder / "all.tar", folder / "copy"

    def pack() -> None:
        subprocess.run(["tar", "-cf", archive, "-C", directory, "."], check=True)
        with archive.open("rb") as file:
            store.put("bench/all.tar", file)

    def unpack() -> None:
        with archive.open("wb") as file:
            file.writelines(store.stream("bench/all.tar"))
        copy.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", copy], check=True)

    def walk() -> None:
        for parent, directories, files in os.walk(directory):
            for name in (*directories, *files):
                os.lstat(f"{parent}/{name}")

    found = {"tar": timed(store, pack), "untar": timed(store, unpack)}
    shutil.rmtree(copy)
    found["cp"] = timed(store, lambda: subprocess.run(["cp", "-r", directory, copy], check=True))
    shutil.rmtree(copy)
    archive.unlink()
    return found | {"walk": timed(store, walk)}


def round_of(options: StoreOptions, files: int, folder: Path) -> dict[str, Figures]:
    """All figures of one workspace, each part in a process of its own, so that nothing is known beforehand."""
    directory = folder / "work"
    fill(directory, files, seed=time.time_ns())
    found = floors(options, directory, folder)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        saved, first, other = pool.apply(saver, (options, directory))
        restored = pool.apply(restorer, (options, folder / "other", first, other))
    found |= saved | restored
    for left in ("work", "other"):
        shutil.rmtree(folder / left)
    return found


@contextmanager
def stores(names: list[str], folder: Path) -> Iterator[dict[str, StoreOptions]]:
    """The stores to measure, running."""
    with ExitStack() as stack:
        found = {}
        if "s3" in names:
            server = stack.enter_context(S3Server())
            found["s3"] = {
                "endpoint_url": server.endpoint_url,
                "bucket": "bench",
                "access_key_id": server.access_key_id,
                "secret_access_key": server.secret_access_key,
            }
        if "folder" in names:
            found["folder"] = {"path": str(folder / "objects")}
        yield found


def _line(name: str, figures: Figures) -> str:
    text = f"  {_TITLES[name]:<26} {figures['ms']:10.1f} {figures['requests']:9.0f}"
    text += f" {figures['sent'] / _MIB:9.2f} {figures['received'] / _MIB:9.2f}"
    return text + (f" {figures['peak'] / _MIB:9.1f}" if "peak" in figures else "")


def _median(rounds: list[dict[str, Figures]]) -> dict[str, Figures]:
    return {part: {key: statistics.median(one[part][key] for one in rounds) for key in figures} for part, figures in rounds[0].items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", nargs="+", type=int, default=[10, 1000, 50_000], help="sizes of workspaces")
    parser.add_argument("--stores", nargs="+", choices=("s3", "folder"), default=["s3", "folder"], help="object stores")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which medians are shown (one at more than 10,000 files)")
    options = parser.parse_args()
    ratios = {}
    with tempfile.TemporaryDirectory(prefix="dualtrack-bench-", dir="/var/tmp") as name:
        folder = Path(name)
        with stores(options.stores, folder) as opened:
            for files in options.files:
                for store, where in opened.items():
                    rounds = [round_of(where, files, folder) for _ in range(1 if files > 10_000 else options.rounds)]
                    found = _median(rounds)
                    print(f"{files} files, {store}{'':<20}{'ms':>7} {'requests':>9} {'MiB sent':>9} {'received':>9} {'MiB peak':>9}")
                    for part in _TITLES:
                        print(_line(part, found[part]), flush=True)
                    for part, floor in _FLOORS.items():
                        ratios[f"{part}_{files}_{store}_to_{floor}"] = round(found[part]["ms"] / found[floor]["ms"], 2)
    print(json.dumps({"benchmark": "workspaces", "ratios": ratios}))


if __name__ == "__main__":
    main()
