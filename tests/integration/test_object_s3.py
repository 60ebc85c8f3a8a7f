"""What only S3 has: credentials, buckets, presigned addresses, a server that can be away."""

from __future__ import annotations

import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import boto3
import pytest
from pydantic import SecretStr

from dualtrack.db import migrate
from dualtrack.db.engine import Database
from dualtrack.doctor import garbage
from dualtrack.domain.errors import ObjectMissing, StorageUnavailable
from dualtrack.objects import s3
from dualtrack.objects.s3 import PART_BYTES, S3Store
from dualtrack.settings import DatabaseSettings, S3Settings
from dualtrack.testing.servers.process import free_ports

if TYPE_CHECKING:
    from dualtrack.testing.servers import S3Server

Open = Callable[..., S3Store]


@pytest.fixture
def bucket() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
def open_s3(s3_server: S3Server, bucket: str) -> Iterator[Open]:
    opened: list[S3Store] = []

    def opener(**changes: object) -> S3Store:
        values: dict[str, object] = {
            "endpoint_url": s3_server.endpoint_url,
            "bucket": bucket,
            "access_key_id": SecretStr(s3_server.access_key_id),
            "secret_access_key": SecretStr(s3_server.secret_access_key),
        }
        opened.append(S3Store(S3Settings.model_validate(values | changes)))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


def test_a_wrong_secret_is_refused_and_says_what_to_check(open_s3: Open) -> None:
    open_s3().put("key", b"1")
    wrong = open_s3(secret_access_key=SecretStr("wrong"))
    for use in (lambda: wrong.get("key"), lambda: wrong.put("key", b"2"), wrong.check):
        with pytest.raises(StorageUnavailable, match=r"refuses the credentials.*ACCESS_KEY"):
            use()
    assert open_s3().get("key") == b"1"


def test_an_unknown_key_is_refused(open_s3: Open) -> None:
    with pytest.raises(StorageUnavailable, match="refuses the credentials"):
        open_s3(access_key_id=SecretStr("nobody")).get("key")


def test_many_make_the_bucket_at_once(open_s3: Open) -> None:
    stores = [open_s3() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: pair[1].put(f"key/{pair[0]}", b"1"), enumerate(stores)))
    assert list(stores[0].keys("key/")) == [f"key/{n}" for n in range(8)]


def test_reading_from_a_bucket_that_was_never_made_finds_nothing(open_s3: Open) -> None:
    assert open_s3().head("key") is None
    with pytest.raises(ObjectMissing):
        open_s3().get("key")


def test_a_bucket_that_went_away_is_made_anew(open_s3: Open, s3_server: S3Server, bucket: str) -> None:
    store = open_s3()
    store.ensure()
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key_id,
        aws_secret_access_key=s3_server.secret_access_key,
    )
    client.delete_bucket(Bucket=bucket)
    client.close()
    with pytest.raises(StorageUnavailable, match="has gone"):
        store.put("key", b"1")
    store.put("key", b"2")
    assert store.get("key") == b"2"


def test_a_presigned_address_downloads_without_credentials(open_s3: Open) -> None:
    store = open_s3()
    store.put("blobs/ab", b"figures")
    name = 'Übersicht "Q3"\r\nX-Evil: 1.csv'
    url = store.presign("blobs/ab", filename=name, content_type="text/csv", expires_s=60)
    assert url is not None
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == b"figures"
        assert answer.headers["Content-Type"] == "text/csv"
        disposition = answer.headers["Content-Disposition"]
        assert "X-Evil" not in answer.headers
    assert disposition.startswith('attachment; filename="_bersicht _Q3___X-Evil: 1.csv"')
    assert disposition.endswith("filename*=UTF-8''%C3%9Cbersicht%20%22Q3%22__X-Evil%3A%201.csv")


def test_a_presigned_address_is_good_for_one_object_only(open_s3: Open) -> None:
    store = open_s3()
    store.put("blobs/ab", b"mine")
    store.put("blobs/cd", b"not mine")
    url = store.presign("blobs/ab", filename="a", content_type="text/plain", expires_s=60)
    assert url is not None
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("blobs/ab", "blobs/cd"), timeout=60)


def test_presigned_addresses_are_signed_for_the_address_that_clients_use(open_s3: Open, s3_server: S3Server) -> None:
    public = s3_server.endpoint_url.replace("127.0.0.1", "localhost")
    store = open_s3(public_endpoint_url=public)
    store.put("key", b"1")
    url = store.presign("key", filename="a", content_type="text/plain", expires_s=60)
    assert url is not None
    assert url.startswith(public)
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert answer.read() == b"1"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("localhost", "127.0.0.1"), timeout=60)


def test_a_server_that_is_down_is_told_apart_from_a_missing_object(open_s3: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    (port,) = free_ports(1)
    store = open_s3(endpoint_url=f"http://127.0.0.1:{port}")
    with pytest.raises(StorageUnavailable, match="ENDPOINT_URL") as caught:
        store.head("key")
    assert caught.value.retryable
    with pytest.raises(StorageUnavailable):
        store.check()


def test_an_upload_that_breaks_off_leaves_no_parts_behind(open_s3: Open, s3_server: S3Server, bucket: str) -> None:
    store = open_s3()

    class Broken:
        given = 0

        def read(self, count: int) -> bytes:
            self.given += count
            if self.given > PART_BYTES:
                raise ObjectMissing("the source broke off")
            return b"x" * count

    with pytest.raises(ObjectMissing, match="broke off"):
        store.put("key", Broken())  # type: ignore[arg-type]  # all of a file that put uses
    client = boto3.client(
        "s3",
        endpoint_url=s3_server.endpoint_url,
        region_name=s3_server.region,
        aws_access_key_id=s3_server.access_key_id,
        aws_secret_access_key=s3_server.secret_access_key,
    )
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    client.close()
    assert store.head("key") is None


def test_garbage_is_collected_from_a_real_server(open_s3: Open, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing and a single object may tell times of different exactness: that must keep nothing from being deleted."""
    monkeypatch.setattr(garbage, "GARBAGE_S", -60.0)  # a day is long in a test
    database = Database(DatabaseSettings(url=SecretStr(database_url)))
    migrate.upgrade(database)
    store = open_s3()
    store.put("observations/ten_1/job_1/call_1/1", b"lost")
    store.put("elsewhere", b"not ours")
    assert garbage.collect(database, store, dry_run=False).bytes == 4
    assert list(store.keys("")) == ["elsewhere"]
    database.close()
