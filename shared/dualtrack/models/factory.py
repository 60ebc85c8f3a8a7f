"""The models of one process, put together from settings and environment. Provider keys are read here and nowhere else."""

from __future__ import annotations

import os
from dataclasses import dataclass

from dualtrack.models.catalog import build_catalog
from dualtrack.models.gateway import LiteLLMGateway
from dualtrack.models.local_server import LocalModelServer
from dualtrack.models.port import ModelGateway
from dualtrack.models.weights import Progress
from dualtrack.settings import ModelsSettings


@dataclass(frozen=True, slots=True)
class Models:
    """The gateway, and the local model's server behind it where some track can reach it."""

    gateway: ModelGateway
    local: LocalModelServer | None

    def close(self) -> None:
        """Stop the local model's server, if it runs."""
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
