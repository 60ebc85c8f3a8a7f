"""Text that no database or wire can hold is found wherever it hides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.errors import InvalidRequest
from router.text import require_clean

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_clean_values_pass(value: Any) -> None:
    require_clean(value)


@pytest.mark.parametrize("bad", ["\x00", "a\x00b", "\ud800", "x\udfff", float("nan"), float("inf"), {"\x00": 1}, {"\ud800": 1}])
@given(JSON, JSON)
def test_one_bad_value_is_named(bad: Any, before: Any, after: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        require_clean({"before": before, "a": [before, {"b": bad}], "after": after})
    assert caught.value.param == "a.1.b"
    with pytest.raises(InvalidRequest):
        require_clean([after, bad], "field")


def test_depth_is_no_problem() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    require_clean(value)
