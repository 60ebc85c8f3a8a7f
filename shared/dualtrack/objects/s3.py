"""Objects in any S3 server, by boto3."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

from dualtrack.domain.errors import DualtrackError, ObjectMissing, StorageUnavailable
from dualtrack.faults import Fault, point
from dualtrack.objects.disposition import attachment, safe_content_type
from dualtrack.objects.keys import check_key
from dualtrack.objects.port import ObjectInfo, StoredObject
from dualtrack.objects.probe import round_trip
from dualtrack.objects.reading import read_up_to
from dualtrack.settings import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
ATTEMPTS: Final = 4
"""Tries of one request, with boto3's backoff and jitter between them."""
PART_BYTES: Final = 8 * 1024 * 1024
"""Objects larger than this are uploaded in parts of it; memory of one upload. S3 takes 10,000 parts: 78 GiB."""
MAX_PRESIGN_S: Final = 7 * 24 * 3600  # the longest that signature version 4 allows

_MISSING: Final = frozenset({"NoSuchKey", "404", "NotFound"})
_BEYOND: Final = "InvalidRange"
_NO_BUCKET: Final = "NoSuchBucket"
_REFUSED: Final = frozenset({"403", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})
_TAKEN: Final = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists", "OperationAborted"})


class S3Store:
    """An `ObjectStore` in one bucket, made on first use if it is missing. Thread-safe."""

    def __init__(self, settings: S3Settings) -> None:
        """Makes no request yet."""
        self._settings = settings
        self._client = _client(settings, settings.endpoint_url)
        public = settings.public_endpoint_url
        # The address is part of what is signed, so links for clients need a client that speaks to their address.
        self._signer = self._client if public in {None, settings.endpoint_url} else _client(settings, public)
        self._bucket = settings.bucket
        self._ensured = False
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Make the bucket if it is missing; others may be doing the same. Raises `StorageUnavailable`."""
        with self._lock:
            if self._ensured:
                return
            with self._errors():
                if not self._bucket_exists():
                    self._create_bucket()
            self._ensured = True

    def put(self, key: str, data: bytes | BinaryIO, *, content_type: str = "application/octet-stream") -> ObjectInfo:
        """See `ObjectStore`. Up to `PART_BYTES` in one request, more in parts, which nobody sees before the last."""
        check_key(key)
        self.ensure()
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        first = read_up_to(source, PART_BYTES)
        point(Fault.UPLOAD, key)
        with self._errors(key):
            if len(first) < PART_BYTES:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=first, ContentType=content_type)
                size = len(first)
            else:
                size = self._put_parts(key, first, source, content_type)
        point(Fault.UPLOADED, key)
        return ObjectInfo(key, size)

    def get(self, key: str) -> bytes:
        """See `ObjectStore`."""
        return self._get(key)

    def part(self, key: str, *, start: int, size: int) -> bytes:
        """See `ObjectStore`."""
        try:
            return self._get(key, Range=f"bytes={start}-{start + size - 1}")[:size]
        except StorageUnavailable as error:
            if isinstance(error.__cause__, ClientError) and _code(error.__cause__) == _BEYOND:
                return b""
            raise

    def _get(self, key: str, **options: str) -> bytes:
        check_key(key)
        self.ensure()
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": key} | options
        with self._errors(key):
            for attempt in range(1, ATTEMPTS + 1):
                # boto3 repeats requests, but not a body that breaks off.
                try:
                    with contextlib.closing(self._client.get_object(**arguments)["Body"]) as body:
                        return body.read()
                except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                    if attempt == ATTEMPTS:
                        raise
        raise AssertionError

    def stream(self, key: str, *, chunk_bytes: int = 262_144) -> Iterator[bytes]:
        """See `ObjectStore`."""
        check_key(key)
        self.ensure()
        with self._errors(key):
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]

        def chunks() -> Iterator[bytes]:
            with contextlib.closing(body), self._errors(key):
                yield from body.iter_chunks(chunk_bytes)

        return chunks()

    def head(self, key: str) -> StoredObject | None:
        """See `ObjectStore`."""
        check_key(key)
        self.ensure()
        try:
            with self._errors(key):
                found = self._client.head_object(Bucket=self._bucket, Key=key)
                return StoredObject(key, found["ContentLength"], found["LastModified"])
        except ObjectMissing:
            return None

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        check_key(key)
        self.ensure()
        with contextlib.suppress(ObjectMissing), self._errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `ObjectStore`."""
        return (found.key for found in self.stored(prefix))

    def stored(self, prefix: str) -> Iterator[StoredObject]:
        """See `ObjectStore`."""
        self.ensure()
        pages = iter(self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix))
        while True:
            with self._errors():
                page = next(pages, None)
            if page is None:
                return
            yield from (StoredObject(item["Key"], item["Size"], item["LastModified"]) for item in page.get("Contents", ()))

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        """See `ObjectStore`. The download is always an attachment: nothing a job made is shown by the store's own origin."""
        check_key(key)
        self.ensure()
        with self._errors(key):
            return self._signer.generate_presigned_url(
                "get_object",
                Params={
                    "Bucket": self._bucket,
                    "Key": key,
                    "ResponseContentDisposition": attachment(filename),
                    "ResponseContentType": safe_content_type(content_type),
                },
                ExpiresIn=max(1, min(expires_s, MAX_PRESIGN_S)),
            )

    def check(self) -> None:
        """See `ObjectStore`. Writes, reads and deletes a small object of its own."""
        round_trip(self, f"The object store at {self._where()}")

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
        self._signer.close()

    def _bucket_exists(self) -> bool:
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if _code(error) in _MISSING | {_NO_BUCKET}:
                return False
            raise
        return True

    def _create_bucket(self) -> None:
        arguments: dict[str, Any] = {"Bucket": self._bucket}
        if self._settings.endpoint_url is None and self._settings.region != "us-east-1":
            arguments["CreateBucketConfiguration"] = {"LocationConstraint": self._settings.region}
        try:
            self._client.create_bucket(**arguments)
        except ClientError as error:
            # Another process won the race, or the bucket is somebody else's: only then can it still not be reached.
            if _code(error) not in _TAKEN:
                raise
            self._client.head_bucket(Bucket=self._bucket)

    def _put_parts(self, key: str, first: bytes, rest: BinaryIO, content_type: str) -> int:
        upload = self._client.create_multipart_upload(Bucket=self._bucket, Key=key, ContentType=content_type)["UploadId"]
        try:
            parts: list[Any] = []
            size = 0
            data = first
            while data:
                tag = self._client.upload_part(Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=len(parts) + 1, Body=data)["ETag"]
                parts.append({"ETag": tag, "PartNumber": len(parts) + 1})
                size += len(data)
                data = read_up_to(rest, PART_BYTES)
            self._client.complete_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(BotoCoreError, ClientError):
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
            raise
        return size

    @contextlib.contextmanager
    def _errors(self, key: str | None = None) -> Iterator[None]:
        """boto3's errors as ours."""
        try:
            yield
        except DualtrackError:
            raise
        except ClientError as error:
            self._raise(error, key)
        except BotoCoreError as error:
            raise StorageUnavailable(
                f"The object store at {self._where()} can't be used: {error}. Check DUALTRACK_OBJECTS__ENDPOINT_URL, the credentials and "
                "that the server is up."
            ) from error

    def _raise(self, error: ClientError, key: str | None) -> NoReturn:
        code = _code(error)
        if code in _MISSING and key is not None:
            raise ObjectMissing(f"There is no object {key!r}.") from error
        if code == _NO_BUCKET:
            self._ensured = False
            raise StorageUnavailable(
                f"The bucket {self._bucket!r} at {self._where()} has gone; it is made anew by the next try."
            ) from error
        if code in _REFUSED:
            raise StorageUnavailable(
                f"The object store at {self._where()} refuses the credentials for bucket {self._bucket!r} ({code}): check "
                "DUALTRACK_OBJECTS__ACCESS_KEY_ID, __SECRET_ACCESS_KEY and what the key may do."
            ) from error
        raise StorageUnavailable(f"The object store at {self._where()} failed: {error}") from error

    def _where(self) -> str:
        return self._settings.endpoint_url or f"AWS ({self._settings.region})"


def _client(settings: S3Settings, endpoint_url: str | None) -> S3Client:
    key, secret = settings.access_key_id, settings.secret_access_key
    # A session of our own: the default one is shared by the process and not safe to make clients from in threads.
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=settings.region,
        aws_access_key_id=None if key is None else key.get_secret_value(),
        aws_secret_access_key=None if secret is None else secret.get_secret_value(),
        config=Config(
            signature_version="s3v4",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            max_pool_connections=32,
            # Servers other than AWS are reached by path: their host name has no bucket in it.
            s3={"addressing_style": "path" if endpoint_url else "auto"},
            # Blobs carry their own SHA-256; many servers don't know boto3's newer checksum trailers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
