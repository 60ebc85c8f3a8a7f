"""The child that runs persistent cells one after another, with the variables of earlier ones."""

from __future__ import annotations

import json
import os
import struct
import sys

from . import cells, children, system

LENGTH = struct.Struct(">I")
# What goes back over the control socket, one byte for each request.
DONE = b"0"
RAISED = b"1"


def request(source: str, number: int, limits: dict[str, int], env: dict[str, str]) -> bytes:
    """An encoded request."""
    body = json.dumps([source, number, limits, env]).encode()
    return LENGTH.pack(len(body)) + body


def serve(workspace: str) -> int:
    """Run cells until the agent has gone or one of them exits; returns the exit status."""
    namespace = cells.new_main(workspace)
    own = os.getpid()
    while True:
        header = _exactly(LENGTH.size)
        if header is None:
            return 0
        body = _exactly(LENGTH.unpack(header)[0])
        if body is None:
            return 0
        source, number, limits, env = json.loads(body)
        children.limit(limits, lasting=True)
        os.environ.update(env)
        answer = DONE if cells.finished(cells.Cell(source, number), namespace, echo=True) else RAISED
        if os.getpid() != own:  # the cell forked: the child ends here, as at the end of a file
            return 0 if answer == DONE else 1
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):  # the cell has closed or replaced it
                pass
        system.flush_c_streams()
        os.write(children.CONTROL, answer)


def _exactly(count: int) -> bytes | None:
    """Bytes from the agent; None when it has gone."""
    data = b""
    while len(data) < count:
        more = os.read(children.CONTROL, count - len(data))
        if not more:
            return None
        data += more
    return data
