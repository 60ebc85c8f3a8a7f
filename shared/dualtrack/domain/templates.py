"""The names of what sandboxes can be made of; what each of them is, executors know (`dualtrack.sandbox.template_catalog`)."""

from __future__ import annotations

from typing import Final

from dualtrack.domain.errors import InvalidRequest

DEFAULT_TEMPLATE: Final = "default"
SHELL_TEMPLATE: Final = "shell"
DATA_TEMPLATE: Final = "python-data"
STANDARD: Final = frozenset({DEFAULT_TEMPLATE, SHELL_TEMPLATE, DATA_TEMPLATE})
"""Those that come with the platform."""


def require_known(name: str | None, known: frozenset[str] | None) -> None:
    """Refuse a template that no executor has.

    Args:
        name: what an agent profile asks for; None: the operator's choice.
        known: all that there are; None: that is not known here, and shows where a sandbox is started.

    Raises:
        InvalidRequest: naming the field and those that there are.
    """
    if name is not None and known is not None and name not in known:
        raise InvalidRequest(
            f"agent.template: there is no sandbox template {name!r}; there are: {', '.join(sorted(known))} (DUALTRACK_SANDBOX__TEMPLATES).",
            param="agent.template",
        )
