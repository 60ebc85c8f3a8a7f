"""What was said to a job: read in parts or at once, it is the same."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.message import NOTHING_SAID, Message, conversation


def said(places: list[int | None]) -> list[Message]:
    return [Message("job_1", number, f"text {number}", "key_1", place, datetime.now(UTC)) for number, place in enumerate(places, 1)]


@given(taken=st.lists(st.integers(0, 5), max_size=12).map(sorted), new=st.integers(0, 3), data=st.data())
def test_messages_read_in_parts_are_those_read_at_once(taken: list[int], new: int, data: st.DataObject) -> None:
    messages = said([*taken, *[None] * new])
    whole = conversation(NOTHING_SAID, messages)
    cut = data.draw(st.integers(0, len(taken)))
    assert conversation(conversation(NOTHING_SAID, messages[:cut]), messages[cut:]) == whole
    step = max([5, *taken])
    shown = whole.shown(step)
    assert [text for place in sorted(shown) for text in shown[place]] == [message.content for message in messages]
    assert whole.unanswered(step) == any(message.after_step in {None, step} for message in messages)
    assert whole.shown(step) == conversation(NOTHING_SAID, said([*taken, *[step] * new])).taken
