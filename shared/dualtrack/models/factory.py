"""The models of one process, put together from settings and environment. Provider keys are read here and nowhere else."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Final

from dualtrack.models.catalog import build_catalog
from dualtrack.models.gateway import LiteLLMGateway
from dualtrack.models.litellm_client import litellm
from dualtrack.models.local_server import LocalModelServer
from dualtrack.models.port import ModelGateway
from dualtrack.models.weights import Progress
from dualtrack.settings import ModelsSettings

_IMPORT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Models:
    """The gateway, and the local model's server behind it where some track can reach it."""

    gateway: ModelGateway
    local: LocalModelServer | None
    warming: list[threading.Thread] = field(default_factory=list)

    def warm_up(self) -> None:
        """Load LiteLLM on a thread of its own, so that the first request does not wait for it."""
        thread = threading.Thread(target=litellm, name="warm-up", daemon=True)
        self.warming.append(thread)
        thread.start()

    @staticmethod
    def load() -> None:
        """Load LiteLLM now, before any work is taken: whatever a process has taken while it loads, waits."""
        litellm()

    def close(self) -> None:
        """Stop the local model's server, if it runs, and wait for an import under way: an interpreter that ends within one aborts."""
        for thread in self.warming:
            thread.join(_IMPORT_S)
        if self.local is not None:
            self.local.stop()


def open_models(settings: ModelsSettings, *, progress: Progress | None = None) -> Models:
    """Nothing is loaded or started before its first use; `progress` is told of the local model's download then.

    Raises:
        InvalidRequest: the settings contradict themselves; names the field.
    """
    catalog = build_catalog(settings, os.environ)
    local = LocalModelServer(settings.local, progress=progress) if catalog.uses_local else None
    return Models(LiteLLMGateway(catalog, environment=os.environ, local=local), local)
