"""Objects in a folder of this machine, for the standalone platform."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, cast

from dualtrack.domain.errors import DualtrackError, InvalidPath, ObjectMissing, StorageUnavailable
from dualtrack.objects.keys import check_key
from dualtrack.objects.port import ObjectInfo, StoredObject
from dualtrack.objects.probe import round_trip
from dualtrack.objects.reading import read_up_to

_CHUNK_BYTES: Final = 1024 * 1024
_INCOMING: Final = ".incoming"  # no key can name it: segments don't start with a dot
_STALE_S: Final = 24 * 3600


class FolderStore:
    """An `ObjectStore` of plain files, each written beside the others and renamed into place, synced to disk. Thread- and process-safe."""

    def __init__(self, path: Path) -> None:
        """`path` is made on first use."""
        self._root = path.absolute()
        self._incoming = self._root / _INCOMING

    def ensure(self) -> None:
        """Make the folder, readable by its owner only, and drop what writers that crashed have left. Raises `StorageUnavailable`."""
        with self._errors():
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._incoming.mkdir(mode=0o700, exist_ok=True)
            for left in self._incoming.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if left.stat().st_mtime < time.time() - _STALE_S:
                        left.unlink()

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        """See `ObjectStore`. The content type is not kept: who serves an object knows it from elsewhere."""
        del content_type
        path = self._path(key)
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        with self._errors(key):
            temporary, file = self._open_temporary()
            try:
                with file:
                    size = 0
                    while chunk := source.read(_CHUNK_BYTES):
                        file.write(chunk)
                        size += len(chunk)
                    file.flush()
                    os.fsync(file.fileno())
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                temporary.replace(path)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_directory(path.parent)
        return ObjectInfo(key, size)

    def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        path = self._path(key)
        with self._errors(key):
            return path.read_bytes()

    def part(self, key: str, *, start: int, size: int) -> bytes:
        """See `ObjectStore`."""
        path = self._path(key)
        with self._errors(key), path.open("rb", buffering=0) as file:
            file.seek(start)
            return read_up_to(cast("BinaryIO", file), size)

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        """See `ObjectStore`."""
        path = self._path(key)
        with self._errors(key):
            file = path.open("rb")

        def chunks() -> Iterator[bytes]:
            with file, self._errors(key):
                while chunk := file.read(chunk_bytes):
                    yield chunk

        return chunks()

    def head(self, key: str) -> StoredObject | None:
        """See `ObjectStore`."""
        path = self._path(key)
        with self._errors(key):
            try:
                status = path.stat()
            except FileNotFoundError:
                return None
            return _stored(key, status) if stat.S_ISREG(status.st_mode) else None

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        path = self._path(key)
        with contextlib.suppress(ObjectMissing), self._errors(key):
            path.unlink()

    def keys(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        with self._errors():
            yield from _walk(self._root, "", prefix)

    def stored(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore`."""
        for key in self.keys(prefix):
            with self._errors():
                try:
                    status = self._path(key).stat()
                except FileNotFoundError:  # deleted meanwhile
                    continue
            yield _stored(key, status)

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        """None: a folder has no address; the router streams the object itself."""
        del key, filename, content_type, expires_s
        return None

    def check(self) -> None:
        """See `ObjectStore`. Writes, reads and deletes a small object of its own."""
        round_trip(self, f"The folder {self._root}")

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _open_temporary(self) -> tuple[Path, BinaryIO]:
        path = self._incoming / secrets.token_hex(16)
        try:
            return path, path.open("xb")
        except FileNotFoundError:
            self.ensure()
            return path, path.open("xb")

    @contextlib.contextmanager
    def _errors(self, key: str | None = None) -> Iterator[None]:
        """The system's errors as ours."""
        try:
            yield
        except DualtrackError:
            raise
        except FileNotFoundError as error:
            if key is None:
                raise StorageUnavailable(f"The folder {self._root} has gone: {error}.") from error
            raise ObjectMissing(f"There is no object {key!r}.") from error
        except OSError as error:
            if key is not None and isinstance(error, FileExistsError | NotADirectoryError | IsADirectoryError):
                message = f"The key {key!r} is part of another key, or the other way round: choose another."
                raise InvalidPath(message, param="key") from error
            raise StorageUnavailable(
                f"The folder {self._root} can't be used: {error}. Check DUALTRACK_OBJECTS__PATH, its permissions and the free space."
            ) from error


def _stored(key: str, status: os.stat_result) -> StoredObject:
    return StoredObject(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _walk(folder: Path, before: str, prefix: str) -> Iterator[str]:
    """Keys below `folder` (whose own key part is `before`) in the order of the whole keys, which is that of `name/` for folders."""
    try:
        with os.scandir(folder) as found:
            entries = sorted((entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""), entry.path) for entry in found)
    except FileNotFoundError:
        return
    for name, path in entries:
        key = before + name
        if name.startswith("."):
            continue
        if name.endswith("/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _walk(Path(path), key, prefix)
        elif key.startswith(prefix):
            yield key


def _sync_directory(path: Path) -> None:
    """Make the rename itself durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
