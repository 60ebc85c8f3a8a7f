"""What a rung lets through on purpose, and why that is bearable. Everything else that works is an escape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAME_ONLY: Final = "a name without access: nothing at that path can be reached"
_OWN_MEMORY: Final = "of its own memory only"
_OWN_INIT: Final = "the sandbox's init is as confined as the command: taking it over gains nothing"
_PER_USER: Final = "counted for each user of the host: give sandboxes that must not share one executors of different users"
_NEXT_COMMAND: Final = "commands of one session are one user's: what it left running may change a later one anyway"

_NAMESPACES: Final = {
    "name-of-workspace": _NAME_ONLY,
    "memory-policy": _OWN_MEMORY,
    "migrate-pages": _OWN_MEMORY,
    "watch-exhaustion": _PER_USER,
    "agent-next-command": _NEXT_COMMAND,
}

ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "landlock": {},
    "bubblewrap": _NAMESPACES,
    "docker": _NAMESPACES,
    "gvisor": {},
}
"""By rung and attempt."""

ONE_SHOT: Final[Mapping[str, str]] = {
    "agent-memory": _OWN_INIT,
    "agent-descriptors": _OWN_INIT,
    "agent-environment": "it holds nothing but what every command is given",
    "processor-hog-many": "the limit is one of each process",
}
"""What drivers without an agent let through as well."""
