"""Settings of the standalone platform: the common ones, with everything inside one state directory."""

from __future__ import annotations

import os
from pathlib import Path

from dotenv import load_dotenv
from pydantic import SecretStr

from dualtrack import bootstrap
from dualtrack.settings import ENV_PREFIX, DatabaseSettings, FolderSettings, Settings


def load(state: Path) -> tuple[Settings, bool]:
    """Settings, and whether the platform brings its own database (none is configured).

    `.env` in the current directory is read first; the environment wins over it. Raises `InvalidRequest`.
    """
    load_dotenv(Path(".env"))
    settings = bootstrap.load_settings()
    changes: dict[str, object] = {}
    if isinstance(settings.objects, FolderSettings) and f"{ENV_PREFIX}OBJECTS__PATH" not in os.environ:
        changes["objects"] = FolderSettings(path=state / "objects")
    if f"{ENV_PREFIX}TELEMETRY__LOG_FORMAT" not in os.environ:
        quiet = {} if f"{ENV_PREFIX}TELEMETRY__LOG_LEVEL" in os.environ else {"log_level": "WARNING"}
        changes["telemetry"] = settings.telemetry.model_copy(update={"log_format": "console", **quiet})
    if f"{ENV_PREFIX}SANDBOX__WORKSPACES" not in os.environ and os.geteuid() != 0:
        changes["sandbox"] = settings.sandbox.model_copy(update={"workspaces": state / "workspaces"})
    own = settings.database.url == DatabaseSettings().url  # neither the environment nor a file names one
    return settings.model_copy(update=changes), own


def at(settings: Settings, database_url: str) -> Settings:
    """The same settings with another database."""
    return settings.model_copy(update={"database": settings.database.model_copy(update={"url": SecretStr(database_url)})})
