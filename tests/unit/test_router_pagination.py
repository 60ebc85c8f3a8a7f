"""Cursors, page sizes and filters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import QueryParams

from dualtrack.domain.errors import InvalidRequest, NotFound
from dualtrack.domain.ids import new_id
from router.job_query import metadata_filter
from router.jobs import job_id_of
from router.pagination import cursor, cut, page_size
from router.times import Time
from router.views import listed

TIME: TypeAdapter[datetime] = TypeAdapter(Time)


@given(st.lists(st.integers(), max_size=60), st.integers(1, 20))
def test_pages_put_together_are_the_list(rows: list[int], limit: int) -> None:
    seen: list[int] = []
    more = True
    while more:
        page, more = cut(rows[len(seen) : len(seen) + limit + 1], limit)
        assert len(page) <= limit
        seen += page
    assert seen == rows


def test_page_sizes_stay_within_the_ceiling() -> None:
    assert page_size(100, 100) == 100
    with pytest.raises(InvalidRequest) as caught:
        page_size(101, 100)
    assert caught.value.param == "limit"


def test_cursors_are_ids_of_their_kind() -> None:
    job = new_id("job")
    assert cursor(job, "job") == job
    assert cursor(None, "job") is None
    for wrong in ("", "x", new_id("file"), job.upper(), job + "0"):
        with pytest.raises(InvalidRequest):
            cursor(wrong, "job")


@pytest.mark.parametrize("text", ["", "job_", "job_\x00", "file_01k9zq7f6e4r8s3t5v7w9x1y2z", "job_01K9ZQ7F6E4R8S3T5V7W9X1Y2Z"])
def test_an_id_of_another_form_is_not_found(text: str) -> None:
    with pytest.raises(NotFound):
        job_id_of(text)


def test_metadata_filters_in_both_spellings() -> None:
    assert metadata_filter(QueryParams("metadata.a=1&metadata[b.c]=2&limit=3&metadata.a=1"), 16) == {"a": "1", "b.c": "2"}
    for wrong in ("metadata.a=1&metadata[a]=2", "metadata.a=%00", "&".join(f"metadata.k{n}=v" for n in range(17))):
        with pytest.raises(InvalidRequest):
            metadata_filter(QueryParams(wrong), 16)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-30T08:00:00Z", datetime(2026, 11, 30, 8, tzinfo=UTC)),
        ("2026-11-30t08:00:00.25z", datetime(2026, 11, 30, 8, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-11-30T08:00:00.123456789+05:30", datetime(2026, 11, 30, 2, 30, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_times_are_rfc_3339(text: str, found: datetime) -> None:
    assert TIME.validate_python(text) == found
    assert TIME.validate_python(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "", "1700000000", "2026-11-30", "2026-11-30T08:00:00", "2026-11-30 08:00:00Z", "2026-11-30T08:00Z", "2026-11-30T08:00:00 01:00",
        "2026-02-30T08:00:00Z", "2026-11-30T24:00:01Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
        "٢٠٢٦-11-30T08:00:00Z", "2026-11-30T08:00:00+0100",
    ],
)  # fmt: skip
def test_what_is_no_time_or_lacks_its_offset_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="RFC 3339 with an offset"):
        TIME.validate_python(text)


def test_the_envelope_of_a_list() -> None:
    page = listed(["x", "y"], ["1", "2"], has_more=True)
    assert (page.first_id, page.last_id, page.next_cursor) == ("1", "2", "2")
    last = listed(list[str](), [], has_more=False)
    assert (last.first_id, last.last_id, last.next_cursor) == (None, None, None)
