"""The child that runs cells: forked from the preloaded agent ahead of its first one, and warm when that comes."""

from __future__ import annotations

import json
import os
import struct

from . import cells, children, ending, system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LENGTH = struct.Struct(">I")
# What goes back over the control socket after a persistent cell.
DONE = b"0"
RAISED = b"1"
_WARM_UP = "import sys\nif len(sys.argv) < 0:\n    print(sys.argv)\n"


def request(source: str, number: int, limits: dict[str, int], env: dict[str, str], *, persistent: bool) -> bytes:
    """An encoded request."""
    body = json.dumps([source, number, limits, env, persistent]).encode()
    return LENGTH.pack(len(body)) + body


def serve(workspace: str) -> int:
    """Run one fresh cell, or persistent ones until the agent has gone or one of them exits; returns only where there is none to run."""
    cells.become_python()
    cells.new_main()
    cells.warm_up(_WARM_UP)
    own = os.getpid()
    control = _identity()
    while True:
        found = _receive()
        if found is None:
            return 0
        source, number, limits, env, persistent = found
        if not persistent:
            os.close(children.CONTROL)
        os.environ.update(env)
        cells.set_path(workspace)
        children.limit(limits, lasting=persistent)
        status = cells.run(source, number, echo=persistent)
        if not persistent or status.exits or os.getpid() != own:  # a cell may fork: that child ends here, as at the end of a file
            ending.leave(status.code)
        ending.flush()
        system.flush_c_streams()
        if _identity() != control:  # the cell has closed all descriptors, as daemons do, and may have opened a file of its own there
            ending.leave(status.code)
        os.write(children.CONTROL, DONE if status.code == 0 else RAISED)


def _identity() -> tuple[int, int] | None:
    """Which socket or file the control descriptor is; None if it is closed."""
    try:
        found = os.fstat(children.CONTROL)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _receive() -> Any:
    """The next request; None when the agent has gone."""
    header = _exactly(LENGTH.size)
    if header is None:
        return None
    body = _exactly(LENGTH.unpack(header)[0])
    return None if body is None else json.loads(body)


def _exactly(count: int) -> bytes | None:
    """Bytes from the agent; None when it has gone."""
    data = bytearray()
    while len(data) < count:
        more = os.read(children.CONTROL, count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)
