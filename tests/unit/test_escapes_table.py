"""Verdicts of the escape suite, and how they are shown."""

from __future__ import annotations

import pytest

from dualtrack.testing.escapes import ATTEMPTS
from dualtrack.testing.escapes.allowed import ALLOWED
from dualtrack.testing.escapes.attempt import Attempt, Kind, Said
from dualtrack.testing.escapes.run import Result
from dualtrack.testing.escapes.table import (
    BEGIN,
    END,
    Control,
    Table,
    Verdict,
    as_json,
    control_of,
    filled,
    into_page,
    markdown,
    terminal,
)

ATTEMPT = Attempt("dig", Kind.FILES, "dig a tunnel", "pass")
WORKED = Result("dig", "it is outside", Said.WORKED, "")
REFUSED = Result("dig", "", Said.REFUSED, "EPERM")
BROKEN = Result("dig", "", Said.BROKEN, "NameError")


def table_of(result: Result, control: tuple[Control, str] = (Control.USER, ""), allowed: dict[str, str] | None = None) -> Table:
    return filled([ATTEMPT], {"dig": control}, {"wall": {"dig": result}}, {"wall": allowed or {}}, {"moat": "no water"})


@pytest.mark.parametrize(
    ("result", "control", "allowed", "verdict", "failures"),
    [
        (REFUSED, Control.USER, {}, Verdict.BLOCKED, 0),
        (REFUSED, Control.ROOT, {}, Verdict.BLOCKED, 0),
        (REFUSED, Control.NONE, {}, Verdict.BLOCKED, 0),
        (REFUSED, Control.NEVER, {}, Verdict.NOT_APPLICABLE, 0),
        (WORKED, Control.USER, {}, Verdict.ESCAPED, 1),
        (WORKED, Control.NEVER, {}, Verdict.ESCAPED, 1),
        (WORKED, Control.USER, {"dig": "a sandpit"}, Verdict.ALLOWED, 0),
        (BROKEN, Control.USER, {"dig": "a sandpit"}, Verdict.BROKEN, 1),
    ],
)
def test_verdicts(result: Result, control: Control, allowed: dict[str, str], verdict: Verdict, failures: int) -> None:
    table = table_of(result, (control, "EPERM without a sandbox too" if control is Control.NEVER else ""), allowed)
    assert table.rows[0].cells == {"wall": verdict}
    assert len(table.failures) == failures


def test_the_control_takes_the_weaker_user_first() -> None:
    assert control_of(ATTEMPT, WORKED, None) == (Control.USER, "")
    assert control_of(ATTEMPT, REFUSED, WORKED) == (Control.ROOT, "")
    assert control_of(ATTEMPT, REFUSED, None) == (Control.NEVER, "EPERM without a sandbox too")
    assert control_of(ATTEMPT, BROKEN, None)[1] == "broken: NameError"


def test_an_escape_is_the_first_and_the_last_thing_to_see() -> None:
    lines = terminal(table_of(WORKED), everything=False).splitlines()
    told = "!! wall: dig ESCAPED: dig a tunnel: it is outside"
    assert lines.index(told) < 5
    assert lines[-1] == told
    assert "  moat        does not work here: no water" in lines


def test_what_is_blocked_is_counted_and_shown_on_demand() -> None:
    table = table_of(REFUSED)
    assert "dig" not in terminal(table, everything=False)
    assert "1 attempts, 1 blocked everywhere" in terminal(table, everything=False)
    assert "dig" in terminal(table, everything=True)


def test_allowances_that_are_not_needed_are_named() -> None:
    table = table_of(REFUSED, allowed={"dig": "a sandpit"})
    assert table.unused == {"wall": ["dig"]}
    assert "no longer needs to be allowed: dig" in terminal(table, everything=False)


def test_json_and_page_hold_the_same() -> None:
    table = table_of(WORKED, allowed={"dig": "a sandpit"})
    assert as_json(table)["rows"][0]["rungs"] == {"wall": {"verdict": "allowed", "note": "a sandpit"}}
    page = into_page(f"before\n{BEGIN}\nold\n{END}\nafter", markdown(table), "today:")
    assert page.startswith("before\n")
    assert page.endswith(f"{END}\nafter")
    assert "old" not in page
    assert "| dig | dig a tunnel | works | allowed (1) |" in page
    assert "1. a sandpit" in page
    with pytest.raises(ValueError, match="lacks"):
        into_page("no marks", "", "")


def test_attempts_have_names_of_their_own_and_compile() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)
    for attempt in ATTEMPTS:
        compile(attempt.source, attempt.name, "exec")
        assert not attempt.tries.endswith("."), attempt.name
        assert attempt.alone or not attempt.limits, attempt.name


def test_only_known_attempts_are_allowed() -> None:
    names = {attempt.name for attempt in ATTEMPTS}
    assert {name for allowed in ALLOWED.values() for name in allowed} <= names
