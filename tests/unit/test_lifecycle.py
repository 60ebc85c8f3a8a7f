"""The lifecycle table: what it promises, and that the database's trigger and the docs say the same."""

import itertools
import re
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from dualtrack.db import migrations
from dualtrack.domain.events import EventType
from dualtrack.domain.lifecycle import TERMINAL, TRANSITIONS, JobStatus, may_become, mermaid

STATUSES = st.sampled_from(list(JobStatus))


def test_nothing_leaves_a_final_status() -> None:
    assert not [edge for edge in TRANSITIONS if edge.source in TERMINAL]


def test_every_status_is_reached_and_every_live_one_can_end() -> None:
    reached = {JobStatus.QUEUED} | {edge.target for edge in TRANSITIONS}
    assert reached == set(JobStatus)
    for status in set(JobStatus) - TERMINAL:
        assert {edge.target for edge in TRANSITIONS if edge.source is status} & TERMINAL


def test_no_edge_is_listed_twice() -> None:
    pairs = [(edge.source, edge.target) for edge in TRANSITIONS]
    assert len(pairs) == len(set(pairs))


def test_the_database_trigger_has_the_same_edges() -> None:
    texts = "".join(path.read_text() for path in sorted(Path(next(iter(migrations.__path__)), "versions").glob("*.py")))
    body = texts[texts.rindex("FUNCTION jobs_lifecycle()") :]
    listed = set(re.findall(r"\('(\w+)', '(\w+)'\)", body[: body.index("THEN")]))
    assert listed == {(edge.source.value, edge.target.value) for edge in TRANSITIONS}


def test_the_picture_shows_every_edge() -> None:
    picture = mermaid()
    for edge in TRANSITIONS:
        assert f"{edge.source} --> {edge.target}: {edge.cause}" in picture


def test_every_event_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| (.+) \|$", page, re.MULTILINE)).keys() == set(EventType)


class Lifecycle(RuleBasedStateMachine):
    """Random walks over the table: a job that has ended stays as it is, and only listed edges are taken."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.walks: list[list[JobStatus]] = []

    @rule(target=jobs)
    def accept(self) -> list[JobStatus]:
        walk = [JobStatus.QUEUED]
        self.walks.append(walk)
        return walk

    @rule(walk=jobs, target_status=STATUSES)
    def change(self, walk: list[JobStatus], target_status: JobStatus) -> None:
        if may_become(walk[-1], target_status):
            walk.append(target_status)

    @invariant()
    def at_most_one_end(self) -> None:
        for walk in self.walks:
            ends = [status for status in walk if status in TERMINAL]
            assert len(ends) <= 1
            assert not ends or walk[-1] is ends[0]

    @invariant()
    def back_in_the_queue_only_from_a_wait(self) -> None:
        for walk in self.walks:
            assert all(before is JobStatus.WAITING for before, after in itertools.pairwise(walk) if after is JobStatus.QUEUED)


TestLifecycle = Lifecycle.TestCase
