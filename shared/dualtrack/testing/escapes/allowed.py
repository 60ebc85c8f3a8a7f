"""What a rung lets through on purpose, and why that is bearable. Everything else that works is an escape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAME_ONLY: Final = "a name only: nothing above or beside it can be reached"
_OWN_MEMORY: Final = "of its own memory only"
_OWN_AGENT: Final = "gVisor shows it to its own user: a command may disturb its own session, not others"
_OWN_TERMINAL: Final = "a terminal of its own making: none of the host is in a container"
_PER_USER: Final = "counted for each user of the host: give sandboxes that must not share one executors of different users"
_NEXT_COMMAND: Final = "commands of one session are one user's: what it left running may change a later one anyway"

_NAMESPACES: Final = {
    "name-of-workspace": _NAME_ONLY,
    "memory-policy": _OWN_MEMORY,
    "migrate-pages": _OWN_MEMORY,
    "watch-exhaustion": _PER_USER,
    "agent-next-command": _NEXT_COMMAND,
}

_DOCKER: Final = {
    "name-of-workspace": _NAME_ONLY,
    "watch-exhaustion": _PER_USER,
    "agent-next-command": _NEXT_COMMAND,
    "kernel-command-line": "how the machine was started, read-only",
    "terminal-injection": _OWN_TERMINAL,
    "terminal-injection-high-bits": _OWN_TERMINAL,
    "write-loginuid": "a label of its own process, for the audit log",
}

_LANDLOCK: Final = {
    "name-of-workspace": _NAME_ONLY,
    "memory-policy": _OWN_MEMORY,
    "see-host-names": "Landlock does not cover it: whether a path exists can be asked, not what is in it or beside it",
    "change-host-mode": "Landlock does not cover it: mode and times of the user's own files whose paths it knows; paths can't be listed",
}

_GVISOR: Final = {
    "kernel-command-line": "gVisor's own, the same on every machine",
    "raise-priority": "in gVisor's own scheduler, which the host does not see",
    "protect-from-oom": "in gVisor's own kernel, which the host does not see",
    "fuse": "gVisor's own device",
    "tunnels": "gVisor's own device",
    "agent-descriptors": _OWN_AGENT,
    "agent-environment": _OWN_AGENT,
    "processor-hog-many": "gVisor's clock of processor time runs ahead of the machine's, by which sessions are limited",
    "agent-forge": "gVisor shows it the descriptors of its own agent: it may forge its own report, not those of other sessions",
}

ALLOWED: Final[Mapping[str, Mapping[str, str]]] = {
    "landlock": _LANDLOCK,
    "bubblewrap": _NAMESPACES,
    "docker": _DOCKER,
    "gvisor": _GVISOR,
}
"""By rung and attempt."""
