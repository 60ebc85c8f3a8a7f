"""Errors as HTTP: every code has a status, every refusal names its field, nothing of the request is repeated."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dualtrack.domain import conflicts
from dualtrack.domain import errors as domain
from dualtrack.domain.job import JobSpec
from dualtrack.models.chat_body import ChatBody
from router import errors


def _family(cls: type[domain.DualtrackError]) -> set[type[domain.DualtrackError]]:
    return {cls}.union(*(_family(inner) for inner in cls.__subclasses__()))


def test_every_code_of_the_domain_has_a_status() -> None:
    ours = {cls for cls in _family(domain.DualtrackError) if cls.__module__.startswith(("dualtrack.domain", "router"))}
    assert len(ours) > 20
    assert {cls.code for cls in ours} - set(errors.STATUS) == set()


@pytest.mark.parametrize("cls", [domain.DatabaseUnavailable, domain.BrokerUnavailable, domain.StorageUnavailable, errors.TooManyStreams])
def test_what_passes_by_itself_says_when_to_try_again(cls: type[domain.DualtrackError]) -> None:
    response = errors.response(cls("Down."))
    assert (response.status_code, response.headers["retry-after"]) == (503, str(errors.RETRY_AFTER_S))


@pytest.mark.parametrize(("asked", "told"), [(None, "2"), (0.0, "1"), (16.2, "17"), (1e12, "86400")])
def test_it_says_the_seconds_that_are_known_also_after_a_trip_between_processes(asked: float | None, told: str) -> None:
    error = domain.ModelRateLimited("Slow down.")
    error.retry_after_s = asked
    response = errors.response(pickle.loads(pickle.dumps(error)))
    assert (response.status_code, response.headers["retry-after"]) == (429, told)
    used_up = domain.BudgetExceeded("Used up.")
    assert "retry-after" not in errors.response(used_up).headers  # nobody knows when there is more
    used_up.retry_after_s = 3600.0
    assert errors.response(used_up).headers["retry-after"] == "3600"


def test_a_class_without_a_status_of_its_own_takes_its_bases() -> None:
    class SourceChanged(domain.InfrastructureError):
        code = "something_new"

    class Odd(domain.DualtrackError):
        code = "odd"

    assert errors.status_of(SourceChanged("x")) == 503
    assert errors.status_of(Odd("x")) == 500
    assert errors.shape(SourceChanged("x"))["error"]["code"] == "something_new"


def test_the_shape_is_openais() -> None:
    response = errors.response(domain.Unauthenticated("No key."))
    assert response.headers["www-authenticate"] == "Bearer"
    assert "retry-after" not in response.headers
    assert json.loads(bytes(response.body)) == {
        "error": {"message": "No key.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    }


def test_a_broken_string_can_be_sent() -> None:
    assert b"\\ud800" in errors.encode(domain.InvalidRequest("\ud800", param="\ud800"))


def refused(model: type[BaseModel], body: Any) -> domain.DualtrackError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    found = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    return errors.from_validation(found, body)


@pytest.mark.parametrize(
    ("model", "body", "param", "message"),
    [
        (JobSpec, {}, "instructions", "instructions: is required."),
        (
            JobSpec,
            {"instructions": "x", "limits": {"steps": 0}},
            "limits.steps",
            "limits.steps: must be at least 1.",
        ),
        (JobSpec, {"instructions": "x", "inputs": [{}]}, "inputs.0.file_id", "inputs.0.file_id: is required."),
        (JobSpec, {"instructions": " "}, "instructions", "instructions: must not be blank."),
        (JobSpec, {"instructions": "x", "agent": {"tools": []}}, "agent.tools", "agent.tools: must have at least 1 item(s)."),
        (JobSpec, {"instructions": "x", "inputs": {}}, "inputs", "inputs: must be a list."),
        (JobSpec, {"instructions": "x", "limits": 5}, "limits", "limits: must be an object."),
        (JobSpec, {"instructions": "x", "limits": {"steps": True}}, "limits.steps", "limits.steps: must be a whole number."),
        (JobSpec, {"instructions": "x", "priority": True}, "priority", "priority: must be a whole number."),
        (JobSpec, {"instructions": "x", "limits": {"cost_usd": True}}, "limits.cost_usd", "limits.cost_usd: must be a number."),
        (JobSpec, {"instructions": "x", "colour": 1}, "colour", "colour: there is no such field."),
        (JobSpec, {"instructions": "x", "outputs": ["a", "."]}, "outputs.1", "outputs.1: must name a file, not the workspace itself."),
        (JobSpec, {"instructions": "x", "metadata": {"": "x"}}, "metadata", "metadata: one of its keys must have at least 1 character(s)."),
        (JobSpec, {"instructions": "x", "k\ud800": 1}, None, None),
        (JobSpec, {"instructions": "x", "metadata": {"k\ud800": "x"}}, "metadata", None),
        (ChatBody, {"model": "m", "messages": [{"role": "user", "content": 1}]}, "messages.0.content", None),
        (ChatBody, {"model": "m", "messages": [{"role": "user", "content": [1]}]}, "messages.0.content.0", None),
        (
            ChatBody,
            {"model": "m", "messages": [{"role": "assistant", "content": [{"type": "bogus"}]}]},
            "messages.0.content.0.type",
            "messages.0.content.0.type: must be one of 'text', 'refusal'.",
        ),
        (ChatBody, {"model": "m", "messages": [{"content": "x"}]}, "messages.0.role", "messages.0.role: is required."),
        (ChatBody, {"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": 5}, "tool_choice", None),
    ],
)
def test_the_field_is_named_as_the_client_wrote_it(model: type[BaseModel], body: Any, param: str | None, message: str | None) -> None:
    error = refused(model, body)
    assert error.param == param
    if message is not None:
        assert error.message == message


def test_a_key_that_can_not_be_stored_is_named() -> None:
    assert "the key 'k\\ud800' holds half of a surrogate pair" in refused(JobSpec, {"instructions": "x", "k\ud800": 1}).message


def test_no_words_of_pydantics_reach_a_client() -> None:
    wrong: list[Any] = [None, True, 1, 1.5, "x", [], [1], {}, {"a": 1}, "x" * 100_000, -1, 10**30]
    base: dict[type[BaseModel], dict[str, Any]] = {
        JobSpec: {"instructions": "x"},
        ChatBody: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    }
    seen = 0
    for model, body in base.items():
        for name in model.model_fields:
            for value in wrong:
                try:
                    model.model_validate(body | {name: value})
                except ValidationError:
                    seen += 1
                    message = refused(model, body | {name: value}).message
                    assert not re.search(r"(?i)tuple|dictionar|instance of|value error|input should|validation|parse", message), message
    assert seen > 100


def test_many_faults_are_counted_and_values_are_not_repeated() -> None:
    error = refused(JobSpec, {"instructions": "x", **{f"unknown{n}": "hunter2" for n in range(5)}})
    assert error.message.endswith("(and 2 more).")
    assert "hunter2" not in error.message


def test_an_internal_error_tells_its_request_id_and_nothing_else() -> None:
    assert errors.internal("req_1").message == "An internal error; the server's log has it under the request id req_1."


def test_the_docs_list_every_code_with_its_status() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", page, re.MULTILINE))
    assert listed == {code: str(status) for code, status in errors.STATUS.items()}


def test_every_conflict_has_a_code_of_its_own_that_a_program_can_tell_from_the_others() -> None:
    ours = {cls for cls in _family(domain.Conflict) if cls.__module__.startswith("dualtrack.domain")}
    codes = {cls.code for cls in ours}
    assert conflicts.JobEnded in ours
    assert len(ours) == len(codes) > 15
    for cls in ours:
        assert errors.status_of(cls("Not now.", param="step")) == 409
        assert errors.shape(cls("Not now.", param="step"))["error"]["param"] == "step"
