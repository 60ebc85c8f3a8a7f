"""The registry of an installation: the tools that every one has, and those that its settings allow."""

from __future__ import annotations

from dualtrack.net.addresses import AllowList
from dualtrack.settings import ToolSettings
from dualtrack.tools.http import HttpRequest
from dualtrack.tools.registry import TOOLS, Registry


def open_registry(settings: ToolSettings, allow: AllowList) -> Registry:
    """The tools on offer; `http_request` is one of them where the operator names hosts."""
    return Registry((*TOOLS, HttpRequest(settings.http_hosts, allow)) if settings.http_hosts else TOOLS)
