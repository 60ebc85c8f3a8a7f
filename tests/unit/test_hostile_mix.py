"""What the hostile mix counts and compares."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path

from dualtrack.testing.hostile.inventory import differences, inventory
from dualtrack.testing.hostile.tally import Tally


def told(*lines: dict[str, object] | str) -> io.StringIO:
    return io.StringIO("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))


def test_what_workers_tell_is_counted() -> None:
    tally = Tally()
    started = threading.Event()
    lines = told(
        {"kind": "started"},
        {"kind": "hostile", "name": "fork-bomb", "ended": "exited", "s": 1.0},
        {"kind": "hostile", "name": "fork-bomb", "ended": "memory_limit", "s": 1.0},
        {"kind": "good", "problem": "", "s": 0.5},
        {"kind": "good", "problem": "the report: gone", "s": 3.0},
        '{"kind": "go',
    )
    tally.follow("one", lines, started)
    assert started.is_set()
    assert (tally.attacks, tally.ends) == ({"fork-bomb": 2}, {"exited": 1, "memory_limit": 1})
    assert tally.problems == ["one: the report: gone"]
    assert (tally.percentile("one", 50), tally.percentile("one", 99)) == (3.0, 3.0)
    assert tally.good["one"] == [0.5, 3.0]


def test_differences_are_named_by_kind() -> None:
    before = {"processes": ["1 a"], "mounts": ["/x"], "sockets": []}
    assert differences(before, before) == {}
    after = {"processes": ["1 a", "2 b"], "mounts": [], "sockets": []}
    assert differences(before, after) == {"processes": ["+ 2 b"], "mounts": ["- /x"]}


def test_what_is_left_in_the_run_s_directory_is_listed(tmp_path: Path) -> None:
    before = inventory(tmp_path, 199_999, [], 0)
    (tmp_path / "123-abcdef12").mkdir()
    (tmp_path / "lock").touch()
    assert differences(before, inventory(tmp_path, 199_999, [], 0)) == {"directories": ["+ 123-abcdef12"]}
