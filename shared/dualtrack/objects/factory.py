"""The object store that the settings ask for."""

from __future__ import annotations

from dualtrack.objects.folder import FolderStore
from dualtrack.objects.port import ObjectStore
from dualtrack.settings import FolderSettings, S3Settings


def open_store(settings: S3Settings | FolderSettings) -> ObjectStore:
    """The store; nothing is asked of it yet, so a server that is down is no error here (`check()` tells)."""
    if isinstance(settings, FolderSettings):
        return FolderStore(settings.path)
    from dualtrack.objects.s3 import S3Store  # boto3 takes a third of a second to import

    return S3Store(settings)
