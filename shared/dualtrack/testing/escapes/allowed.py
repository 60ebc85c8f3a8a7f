"""What a rung lets through on purpose, and why that is bearable. Everything else that works is an escape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAME_ONLY: Final = "a name without access: nothing at that path can be reached"
_OWN_INIT: Final = "the sandbox's init is as confined as the command: taking it over gains nothing"
_OWN_MEMORY: Final = "of its own memory only"
_PER_USER: Final = "counted for each user of the host: give sandboxes that must not share one executors of different users"
_EACH_PROCESS: Final = "the limit is one of each process"

ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "bubblewrap": {
        "name-of-workspace": _NAME_ONLY,
        "memory-policy": _OWN_MEMORY,
        "migrate-pages": _OWN_MEMORY,
        "agent-memory": _OWN_INIT,
        "agent-descriptors": _OWN_INIT,
        "agent-environment": "it is empty but for what every command is given",
        "processor-hog-many": _EACH_PROCESS,
        "watch-exhaustion": _PER_USER,
    },
    "docker": {
        "name-of-workspace": _NAME_ONLY,
        "memory-policy": _OWN_MEMORY,
        "migrate-pages": _OWN_MEMORY,
        "agent-memory": _OWN_INIT,
        "agent-descriptors": _OWN_INIT,
        "agent-environment": "it is empty but for what every command is given",
        "processor-hog-many": _EACH_PROCESS,
        "watch-exhaustion": _PER_USER,
    },
    "landlock": {},
    "gvisor": {},
}
"""By rung and attempt."""
