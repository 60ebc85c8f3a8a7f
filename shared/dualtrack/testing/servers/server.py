"""What all test servers have in common."""

from __future__ import annotations

import abc
import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Self


class Server(abc.ABC):
    """A private server with its files in a folder of its own. Not thread-safe."""

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"dualtrack-{prefix}-"))
        # An interpreter that ends without close() (a failed session fixture, Ctrl-C) must leave nothing running.
        atexit.register(self.close)

    @abc.abstractmethod
    def start(self) -> None:
        """Start it and return once it answers; on the same data when it ran before. Raises `ServerFailed`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it in good order; no process of it is left."""

    @abc.abstractmethod
    def kill(self) -> None:
        """`kill -9`: no goodbye, nothing flushed."""

    def restart(self) -> None:
        """Stop and start on the same data, at the same address."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill it and remove all its files; a second time does nothing."""
        atexit.unregister(self.close)
        try:
            self.kill()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
