"""What a session's requests leave in the audit trail: bounded, adding up, without a path or a secret."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.egress import EgressReason, EgressRequest
from dualtrack.domain.events import EventType
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.step import Call
from dualtrack.domain.tool import Effect
from dualtrack.egress.log import OTHERS, RequestLog
from dualtrack.engine.egress_events import egress_events

NOW = datetime.now(UTC)
ONE = EgressRequest("pypi.org", 443, "GET", allowed=True, status=200, bytes_up=10, bytes_down=20)


def test_the_first_ones_stand_alone_and_further_ones_are_added_up() -> None:
    log = RequestLog(2)
    for request in [ONE, ONE, ONE, replace(ONE, secrets=("a",)), replace(ONE, status=404), replace(ONE, secrets=("b",))]:
        log.add(request)
    assert log.drain() == (
        ONE,
        ONE,
        replace(ONE, bytes_up=30, bytes_down=60, requests=3, secrets=("a", "b")),
        replace(ONE, status=404),
    )
    assert log.drain() == ()


def test_what_is_to_too_many_places_is_one_line_for_each_decision() -> None:
    log = RequestLog(1)
    for n in range(1000):
        log.add(EgressRequest(f"h{n}.example", 443, "CONNECT", allowed=n % 2 == 0, reason=EgressReason.NOT_ALLOWED, bytes_up=1))
    found = log.drain()
    assert len(found) == 4
    assert [(one.host, one.allowed, one.requests) for one in found[2:]] == [(OTHERS, True, 499), (OTHERS, False, 499)]


_REQUESTS = st.builds(
    EgressRequest,
    host=st.sampled_from(["a.example", "b.example", "c.example"]),
    port=st.sampled_from([80, 443]),
    method=st.sampled_from(["GET", "CONNECT"]),
    allowed=st.booleans(),
    reason=st.sampled_from([None, EgressReason.BROKEN]),
    bytes_up=st.integers(0, 1000),
    bytes_down=st.integers(0, 1000),
)


@given(st.lists(_REQUESTS, max_size=60), st.integers(1, 5))
def test_nothing_is_lost_in_adding_up(requests: list[EgressRequest], most: int) -> None:
    log = RequestLog(most)
    for request in requests:
        log.add(request)
    found = log.drain()
    assert len(found) <= 2 * most + 2
    for allowed in (True, False):
        given_ = [one for one in requests if one.allowed is allowed]
        told = [one for one in found if one.allowed is allowed]
        assert sum(one.requests for one in told) == len(given_)
        assert sum(one.bytes_up for one in told) == sum(one.bytes_up for one in given_)
        assert sum(one.bytes_down for one in told) == sum(one.bytes_down for one in given_)


def test_an_event_says_which_call_it_was() -> None:
    call = Call(
        id="call_1", job_id="job_1", tenant_id="ten_1", step=3, position=0, wave=0, tool="shell", effect=Effect.WORKSPACE, arguments={},
        status=CallStatus.RUNNING, ok=None, preview="", observation_key=None, details={}, attempt=1, tries=1, failures=0, traceparent="",
        created_at=NOW, started_at=NOW, finished_at=None,
    )  # fmt: skip
    (event,) = egress_events(call, [replace(ONE, allowed=False, reason=EgressReason.NOT_ALLOWED, secrets=("api",))])
    assert event.type is EventType.EGRESS_REQUEST
    assert event.data == {
        "call_id": "call_1", "step": 3, "tool": "shell", "decision": "refused", "host": "pypi.org", "port": 443, "method": "GET",
        "reason": "not_allowed", "status": 200, "bytes_up": 10, "bytes_down": 20, "secrets": ["api"], "requests": 1,
    }  # fmt: skip
