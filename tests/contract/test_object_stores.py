"""All object stores, by the same contract."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from dualtrack.objects.factory import open_store
from dualtrack.objects.folder import FolderStore
from dualtrack.objects.port import ObjectStore
from dualtrack.objects.s3 import S3Store
from dualtrack.settings import FolderSettings, S3Settings
from dualtrack.testing.contracts.objects import ObjectStoreContract
from dualtrack.testing.objects import MemoryStore

if TYPE_CHECKING:
    from dualtrack.testing.servers import S3Server


class TestMemoryStore(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MemoryStore()


class TestFolderStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        store = open_store(FolderSettings(path=tmp_path / "not" / "yet"))
        assert isinstance(store, FolderStore)
        return store


class TestS3Store(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3_server: S3Server) -> Iterator[ObjectStore]:
        store = open_store(
            S3Settings(
                endpoint_url=s3_server.endpoint_url,
                bucket=f"contract-{secrets.token_hex(6)}",
                access_key_id=SecretStr(s3_server.access_key_id),
                secret_access_key=SecretStr(s3_server.secret_access_key),
            )
        )
        assert isinstance(store, S3Store)
        yield store
        store.close()
