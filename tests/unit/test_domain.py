"""Ids, paths, errors, job specs and the rules of the deep track."""

import pickle
import time
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dualtrack.domain import errors
from dualtrack.domain.ids import first_id, is_id, new_id
from dualtrack.domain.job import JobSpec
from dualtrack.domain.lifecycle import CallStatus
from dualtrack.domain.limits import STORED, JobLimits, LimitsChange, PlatformLimits
from dualtrack.domain.paths import file_name, workspace_path
from dualtrack.domain.policies import backoff, is_stuck, needs_reflection, waves
from dualtrack.domain.step import Call, Step
from dualtrack.domain.text import storable
from dualtrack.domain.tool import Effect
from dualtrack.domain.usage import Usage

NOW = datetime.now(UTC)


def step(number: int, *, ok: bool, arguments: dict[str, object] | None = None, preview: str = "boom", note: str = "") -> Step:
    call = Call(
        id=f"call_{number}", job_id="job_1", tenant_id="ten_1", step=number, position=0, wave=0, tool="shell", effect=Effect.WORKSPACE,
        arguments=arguments or {"command": "false"}, status=CallStatus.SUCCEEDED if ok else CallStatus.FAILED, ok=ok, preview=preview,
        observation_key=None, details={}, attempt=1, tries=1, failures=0, traceparent="", created_at=NOW, started_at=NOW, finished_at=NOW,
    )  # fmt: skip
    return Step("job_1", number, "", "", note, "m", Usage(), 0.0, NOW, (call,))


def test_ids_name_their_kind_are_unique_and_sort_by_time() -> None:
    first = [new_id("job") for _ in range(1000)]
    time.sleep(0.002)
    later = new_id("job")
    assert len(set(first)) == 1000
    assert max(first) < later
    assert is_id(later, "job")
    assert not is_id(later, "call")
    assert not is_id("job_" + "i" * 26, "job")  # not in the alphabet


def test_the_first_id_of_a_time_parts_ids_by_it() -> None:
    before = time.time()
    made = new_id("job")
    assert is_id(first_id("job", before), "job")
    assert first_id("job", before) <= made < first_id("job", time.time() + 0.001)
    assert first_id("job", -1e12) == first_id("job", 0) == "job_" + "0" * 26
    assert made < first_id("job", 1e18)


@pytest.mark.parametrize(
    ("text", "path"),
    [("a.txt", "a.txt"), ("./a//b/", "a/b"), ("/workspace/a", "a"), ("/workspace", "."), (".", "."), ("ä/ö.csv", "ä/ö.csv")],
)
def test_workspace_paths_have_one_normal_form(text: str, path: str) -> None:
    assert workspace_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "../a",
        "a/../../b",
        "/etc/passwd",
        "/workspacex/a",
        "a\x00b",
        "a\nb",
        "a/\u202ecod.exe",
        "\u2066a",
        "x" * 256,
        "a/" * 600 + "b",
    ],
)
def test_paths_that_leave_the_workspace_are_refused(text: str) -> None:
    with pytest.raises(errors.InvalidPath) as refused:
        workspace_path(text, param="inputs.0.path")
    assert refused.value.param == "inputs.0.path"


@given(st.text())
def test_an_accepted_path_never_leaves_the_workspace_and_is_stable(text: str) -> None:
    try:
        path = workspace_path(text)
    except errors.InvalidPath:
        return
    assert not path.startswith("/")
    assert ".." not in path.split("/")
    assert workspace_path(path) == path


@pytest.mark.parametrize("text", ["../../x", "a/b", "a\\b", "..", ".", "C:\\x", "a\u202eb", "a\u2069b", "a\x7fb"])
def test_file_names_hold_no_directories(text: str) -> None:
    with pytest.raises(errors.InvalidPath):
        file_name(text)


@given(
    st.recursive(st.text() | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_storable_values_can_be_encoded_and_hold_no_nul(value: object) -> None:
    kept = storable(value)
    assert "\x00" not in repr(kept).encode().decode()
    assert storable(kept) == kept


def test_an_error_that_quotes_a_server_can_be_written_down_and_answered() -> None:
    error = errors.InfrastructureError("The server says: \x00\ud800.")
    assert (error.message, str(error)) == ("The server says: \ufffd\ufffd.",) * 2
    assert pickle.loads(pickle.dumps(error)).message == error.message


def all_errors(base: type[errors.DualtrackError]) -> list[type[errors.DualtrackError]]:
    return [base, *(found for cls in base.__subclasses__() for found in all_errors(cls))]


def test_every_error_survives_pickling_and_codes_are_not_shared() -> None:
    found = all_errors(errors.DualtrackError)
    assert len(found) > 20
    for cls in found:
        copy = pickle.loads(pickle.dumps(cls("what to do", param="field")))
        assert (type(copy), copy.message, copy.param, str(copy)) == (cls, "what to do", "field", "what to do")
    codes = [cls.code for cls in found]
    assert len(codes) == len(set(codes))


def test_a_malformed_action_carries_what_it_cost_through_pickling() -> None:
    error = errors.MalformedAction("no", raw="hm", model="m", usage=Usage(3, 4))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.raw, copy.model, copy.usage) == ("hm", "m", Usage(3, 4))


def test_a_job_spec_is_closed_and_says_which_field_is_wrong() -> None:
    with pytest.raises(ValidationError) as refused:
        JobSpec.model_validate({"instructions": "x", "limits": {"steps": 0}, "colour": "red"})
    assert {error["loc"] for error in refused.value.errors()} == {("limits", "steps"), ("colour",)}


@pytest.mark.parametrize("path", ["../../x", "/etc/passwd", "."])
def test_input_paths_stay_inside(path: str) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"instructions": "x", "inputs": [{"file_id": "file_1", "path": path}]})


def test_finish_is_always_a_tool() -> None:
    assert JobSpec.model_validate({"instructions": "x", "agent": {"tools": ["shell"]}}).agent.tools == ("shell", "finish")


def test_names_given_twice_count_once_in_their_order() -> None:
    spec = JobSpec.model_validate(
        {"instructions": "x", "agent": {"tools": ["shell", "finish", "shell"]}, "outputs": ["b", "/workspace/a", "./b", "a"]}
    )
    assert (spec.agent.tools, spec.outputs) == (("shell", "finish"), ("b", "a"))


@pytest.mark.parametrize("limits", [{"steps": True}, {"tokens": "5"}, {"wall_time_s": 5.0}, {"cost_usd": True}])
def test_limits_are_numbers(limits: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"instructions": "x", "limits": limits})


@pytest.mark.parametrize(
    "amount",
    ["1e5", "1E5", " 1 ", "1\n", "", ".5", "5.", "-1", "+1", "-0", "1_0", "٣", "0.0000000001", 1e-10, -0.5, 100_001, [1]],
)
def test_what_is_no_amount_of_dollars_is_refused(amount: object) -> None:
    for model in (JobLimits, LimitsChange):
        with pytest.raises(ValidationError) as wrong:
            model.model_validate({"cost_usd": amount})
        assert wrong.value.errors()[0]["loc"] == ("cost_usd",)


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        (1, "1"), (10, "10"), (0.25, "0.25"), (-0.0, "0"), (0, "0"), (1e5, "100000"), (1e-9, "0.000000001"), (0.1 + 0.2, "0.3"),
        ("2.50", "2.5"), ("0.0000001", "0.0000001"), ("00", "0"),
    ],
)  # fmt: skip
def test_amounts_of_dollars_are_shown_in_digits_that_can_be_sent_back(amount: object, shown: str) -> None:
    limits = JobLimits.model_validate({"cost_usd": amount})
    assert limits.model_dump(mode="json")["cost_usd"] == shown
    assert JobLimits.model_validate(limits.model_dump(mode="json")) == limits
    assert not limits.cost_usd.is_signed()


@pytest.mark.parametrize(("record", "amount"), [("1E-7", "0.0000001"), ("1E+5", "100000"), ("-0.0", "0"), ("1E-1000", "0"), ("0.0", "0")])
def test_amounts_as_an_earlier_release_kept_them_are_read(record: str, amount: str) -> None:
    assert JobLimits.model_validate({"cost_usd": record}, context=STORED).cost_usd == Decimal(amount)


def test_a_spec_survives_its_stored_form() -> None:
    spec = JobSpec.model_validate({"instructions": "x", "limits": {"steps": 7, "cost_usd": "0.5"}, "outputs": ["a"], "priority": 3})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_the_same_failure_three_times_is_no_progress_but_other_failures_are() -> None:
    same = [step(n, ok=False) for n in (1, 2, 3)]
    assert is_stuck(same, 3)
    assert not is_stuck(same[:2], 3)
    assert not is_stuck([*same[:2], step(3, ok=False, preview="another error")], 3)
    assert not is_stuck([*same[:2], step(3, ok=False, arguments={"command": "other"})], 3)
    assert not is_stuck([step(n, ok=True) for n in (1, 2, 3)], 3)


def test_reflection_follows_failures_and_notes_only() -> None:
    assert needs_reflection([step(1, ok=False)])
    assert needs_reflection([step(1, ok=True, note="no action")])
    assert not needs_reflection([step(1, ok=False), step(2, ok=True)])
    assert not needs_reflection([])


@given(st.integers(1, 1000))
def test_backoff_grows_within_its_bounds(tries: int) -> None:
    limits = PlatformLimits()
    pause = backoff(tries, limits)
    cap = min(limits.backoff_max_s, limits.backoff_s * 2 ** min(tries - 1, 16))
    assert 0.1 * cap <= pause <= cap


@given(st.lists(st.sampled_from([Effect.PURE, Effect.WORKSPACE, Effect.EXTERNAL])))
def test_waves_keep_order_and_only_pure_calls_share_one(effects: list[Effect]) -> None:
    found = waves(effects)
    assert found == sorted(found)
    for wave in set(found):
        members = [effect for effect, own in zip(effects, found, strict=True) if own == wave]
        assert len(members) == 1 or set(members) == {Effect.PURE}
    assert sorted(set(found)) == list(range(len(set(found))))
