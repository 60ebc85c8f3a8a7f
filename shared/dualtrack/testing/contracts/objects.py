"""What every object store must do."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, cast

import pytest

from dualtrack.domain.errors import InvalidPath, ObjectMissing
from dualtrack.objects.port import ObjectStore

_LARGE = 17 * 1024 * 1024 + 3  # three parts on S3


class _Dribble(io.RawIOBase):
    """A source that gives less than it is asked for, and breaks off with an error when told to."""

    def __init__(self, data: bytes, *, fail_at: int | None = None) -> None:
        self._data = io.BytesIO(data)
        self._fail_at = fail_at

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        chunk = self._data.read(min(len(view), 1_000_003))
        view[: len(chunk)] = chunk
        if self._fail_at is not None and self._data.tell() > self._fail_at:
            raise ObjectMissing("the source broke off")
        return len(chunk)


class ObjectStoreContract:
    """Subclass it as `Test…` and give a fixture `store`: an empty store."""

    def test_gives_back_what_was_put(self, store: ObjectStore) -> None:
        info = store.put("blobs/ten_1/ab/abcd", b"\x00\xff data")
        assert (info.key, info.size) == ("blobs/ten_1/ab/abcd", 7)
        assert store.get("blobs/ten_1/ab/abcd") == b"\x00\xff data"
        found = store.head("blobs/ten_1/ab/abcd")
        assert found is not None
        assert (found.key, found.size) == (info.key, info.size)
        assert abs(datetime.now(UTC) - found.modified_at) < timedelta(minutes=1)
        assert b"".join(store.stream("blobs/ten_1/ab/abcd")) == b"\x00\xff data"

    def test_an_empty_object_is_an_object(self, store: ObjectStore) -> None:
        assert store.put("empty", b"").size == 0
        assert store.get("empty") == b""
        assert list(store.stream("empty")) == []
        info = store.head("empty")
        assert info is not None
        assert info.size == 0

    def test_a_part_is_given_alone(self, store: ObjectStore) -> None:
        store.put("key", b"0123456789")
        assert store.part("key", start=0, size=10) == b"0123456789"
        assert store.part("key", start=3, size=4) == b"3456"
        assert store.part("key", start=8, size=100) == b"89"
        assert store.part("key", start=10, size=1) == b""
        with pytest.raises(ObjectMissing):
            store.part("absent", start=0, size=1)

    def test_put_replaces(self, store: ObjectStore) -> None:
        store.put("key", b"first, and longer")
        store.put("key", b"second")
        assert store.get("key") == b"second"

    def test_a_file_is_read_from_its_position_and_left_open(self, store: ObjectStore) -> None:
        source = io.BytesIO(b"skipped kept")
        source.seek(8)
        assert store.put("key", source).size == 4
        assert store.get("key") == b"kept"
        assert not source.closed

    def test_large_objects_from_slow_sources_and_in_chunks(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * (_LARGE // 256) + b"end"
        assert store.put("large", cast("BinaryIO", _Dribble(data))).size == len(data)
        chunks = list(store.stream("large", chunk_bytes=1_000_000))
        assert max(map(len, chunks)) <= 1_000_000
        assert b"".join(chunks) == data
        assert store.get("large") == data

    @pytest.mark.parametrize("fail_at", [10, _LARGE - 10])
    def test_a_source_that_breaks_off_leaves_the_old_object(self, store: ObjectStore, fail_at: int) -> None:
        store.put("key", b"old")
        with pytest.raises(ObjectMissing, match="the source broke off"):
            store.put("key", cast("BinaryIO", _Dribble(b"x" * _LARGE, fail_at=fail_at)))
        assert store.get("key") == b"old"
        assert list(store.keys("")) == ["key"]

    def test_missing_objects(self, store: ObjectStore) -> None:
        assert store.head("absent") is None
        with pytest.raises(ObjectMissing, match="absent"):
            store.get("absent")
        with pytest.raises(ObjectMissing, match="absent"):
            store.stream("absent")
        store.delete("absent")

    def test_delete(self, store: ObjectStore) -> None:
        store.put("a/1", b"1")
        store.put("a/2", b"2")
        store.delete("a/1")
        assert store.head("a/1") is None
        assert list(store.keys("")) == ["a/2"]

    def test_keys_by_prefix_in_order(self, store: ObjectStore) -> None:
        for key in ("b/2", "b/10", "ba", "a/x/y", "c", "b/1/deep"):
            store.put(key, b"")
        assert list(store.keys("")) == ["a/x/y", "b/1/deep", "b/10", "b/2", "ba", "c"]
        assert list(store.keys("b/")) == ["b/1/deep", "b/10", "b/2"]
        assert list(store.keys("b/1")) == ["b/1/deep", "b/10"]
        assert list(store.keys("b/1/")) == ["b/1/deep"]
        assert list(store.keys("nothing")) == []

    def test_more_keys_than_a_page(self, store: ObjectStore) -> None:
        names = [f"many/{n:04}" for n in range(1203)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: store.put(name, b""), names))
        assert list(store.keys("many/")) == names
        assert [found.key for found in store.stored("many/")] == names

    def test_a_listing_tells_sizes_and_ages(self, store: ObjectStore) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)  # stores may have whole seconds only
        store.put("a/1", b"four")
        store.put("a/2", b"")
        store.put("b", b"x")
        found = list(store.stored("a/"))
        assert [(item.key, item.size) for item in found] == [("a/1", 4), ("a/2", 0)]
        assert all(before < item.modified_at < before + timedelta(minutes=1) for item in found)

    @pytest.mark.parametrize(
        "key", ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".hidden", "a/.b", "a\\b", "a b", "ä", "a\x00", "a\n", "x" * 513, "y" * 201]
    )
    def test_what_is_no_key_is_refused(self, store: ObjectStore, key: str) -> None:
        for use in (store.get, store.head, store.delete, store.stream, lambda key: store.put(key, b"")):
            with pytest.raises(InvalidPath, match="key"):
                use(key)
        assert list(store.keys("")) == []

    def test_readers_never_see_half_an_object(self, store: ObjectStore) -> None:
        versions = {letter * 300_000 for letter in (b"a", b"b")}
        store.put("key", min(versions))
        stop = threading.Event()

        def read() -> set[bytes]:
            seen = set()
            while not stop.is_set():
                seen.add(store.get("key"))
            return seen

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            for version in [*versions] * 5:
                store.put("key", version)
            stop.set()
            for reader in readers:
                assert reader.result() <= versions

    def test_check_passes_and_leaves_nothing(self, store: ObjectStore) -> None:
        store.check()
        assert list(store.keys("")) == []
