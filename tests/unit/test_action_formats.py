from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualtrack.domain.tool import Effect, ToolSpec
from dualtrack.models.action_text import ActionUnreadable, ProviderAnswer
from dualtrack.models.actions import ActionFormat, read_action, request_body, summary_body
from dualtrack.models.port import DecisionRequest, PastCall, PastStep, SummaryRequest

SHELL = ToolSpec(
    "shell",
    "Run a command.",
    {
        "type": "object",
        "properties": {"command": {"type": "string", "maxLength": 99999, "description": "d"}, "timeout_s": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    Effect.WORKSPACE,
)
FINISH = ToolSpec(
    "finish",
    "Done.",
    {
        "type": "object",
        "properties": {"success": {"type": "boolean"}, "answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    },
    Effect.CONTROL,
)
FORMATS: tuple[ActionFormat, ...] = ("native", "json")


def request(steps: list[PastStep] | None = None, *, reflect: bool = False) -> DecisionRequest:
    return DecisionRequest(model="deep", system="Be good.", task="Do it.", tools=(SHELL, FINISH), steps=steps or [], reflect=reflect)


def call(arguments: str, name: str = "shell") -> dict[str, Any]:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


calls = st.builds(
    PastCall,
    tool=st.sampled_from(["shell", "finish", "gone"]),
    arguments=st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=2),
    ok=st.booleans(),
    observation=st.text(max_size=20),
)
steps = st.builds(
    PastStep,
    thought=st.text(max_size=20),
    calls=st.lists(calls, max_size=3).map(tuple),
    note=st.sampled_from(["", "The checks failed."]),
    reflection=st.sampled_from(["", "I was wrong."]),
    messages=st.sampled_from([(), ("Use euros.",), ("Use euros.", "And hurry.")]),
)


@pytest.mark.parametrize("action_format", FORMATS)
@given(history=st.lists(steps, max_size=4))
def test_each_decision_begins_with_the_messages_of_the_one_before(action_format: ActionFormat, history: list[PastStep]) -> None:
    for count in range(len(history)):
        asked = bool(history[count].reflection)  # the engine asked for the reflection that the next step then holds
        before = request_body(request(history[:count], reflect=asked), action_format)["messages"]
        after = request_body(request(history[: count + 1]), action_format)["messages"]
        assert after[: len(before)] == before
    messages = request_body(request(history), action_format)["messages"]
    assert sum(message["role"] == "assistant" for message in messages) == len(history)


@given(history=st.lists(steps, max_size=4))
def test_native_results_answer_the_calls_before_them(history: list[PastStep]) -> None:
    open_calls: list[str] = []
    for message in request_body(request(history), "native")["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == open_calls.pop(0)
        else:
            assert not open_calls
            open_calls = [made["id"] for made in message.get("tool_calls", ())]
    assert not open_calls


@pytest.mark.parametrize("reflect", [False, True])
def test_the_json_schema_accepts_what_past_steps_show_and_no_other_tool(reflect: bool) -> None:
    body = request_body(
        request([PastStep("look", (PastCall("shell", {"command": "ls"}, ok=True, observation="a"),))], reflect=reflect), "json"
    )
    schema = body["response_format"]["json_schema"]["schema"]
    shown = json.loads(body["messages"][2]["content"])
    action = ({"reflection": "r"} if reflect else {}) | shown
    jsonschema.validate(action, schema)
    for wrong in (action | {"tool": "gone"}, action | {"arguments": {}}, action | {"tool": "finish"}, action | {"thought": "x" * 10_000}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    assert "99999" not in json.dumps(schema)


def test_json_shows_failures_notes_and_malformed_answers() -> None:
    failed = PastStep("try", (PastCall("shell", {"command": "x"}, ok=False, observation="not found"),), note="Try again.")
    malformed = PastStep("I would like to", (), note="Answer with JSON.")
    messages = request_body(request([failed, malformed]), "json")["messages"]
    assert messages[3]["content"] == "FAILED: shell\nnot found\n\nTry again."
    assert [message["content"] for message in messages[4:]] == ["I would like to", "Answer with JSON."]
    assert "shell(command, timeout_s?): Run a command." in messages[0]["content"]


@pytest.mark.parametrize("action_format", FORMATS)
def test_what_the_user_writes_to_a_running_job_comes_after_the_step_it_followed(action_format: ActionFormat) -> None:
    step = PastStep(
        "try", (PastCall("shell", {"command": "x"}, ok=False, observation="not found"),), note="Look.", messages=("Stop.", "Go.")
    )
    later = PastStep("again", (PastCall("shell", {"command": "y"}, ok=True, observation="fine"),), reflection="I was wrong.")
    asked = replace(request([step, later]), messages=("Use euros.",))
    messages = request_body(asked, action_format)["messages"]
    whole = "\n".join(str(message["content"]) for message in messages)
    told = ["Do it.", "Message from the user:\nUse euros.", "try", "not found", "Look.", "Message from the user:\nStop.",
            "Message from the user:\nGo.", "I was wrong.", "fine"]  # fmt: skip
    places = [whole.find(text) for text in told]
    assert places == sorted(places)
    assert min(places) >= 0
    holders = [message["role"] for message in messages if "Message from the user" in str(message["content"])]
    assert set(holders) == {"user"}
    if action_format == "json":
        roles = [message["role"] for message in messages[1:]]
        assert roles == ["user", "assistant"] * 2 + ["user"]


@pytest.mark.parametrize("action_format", FORMATS)
@given(history=st.lists(steps, max_size=3), summary=st.sampled_from(["", "I looked."]))
def test_a_summary_is_asked_for_after_the_very_context_that_it_replaces(
    action_format: ActionFormat, history: list[PastStep], summary: str
) -> None:
    context = replace(request(history), summary=summary, summarised=7)
    decided, asked = request_body(context, action_format), summary_body(SummaryRequest(context, most_chars=800), action_format)
    assert "response_format" not in asked
    assert asked.get("tools") == decided.get("tools")
    before, after = decided["messages"], asked["messages"]
    assert after[: len(before) - 1] == before[:-1]
    if action_format == "native":
        assert (after[:-1], asked["tool_choice"]) == (before, "none")
    else:
        assert after[-1]["content"].startswith(before[-1]["content"])
    assert "at most 100 words" in after[-1]["content"]


@pytest.mark.parametrize("action_format", FORMATS)
def test_the_context_goes_on_from_a_summary(action_format: ActionFormat) -> None:
    later = PastStep("go on", (PastCall("shell", {"command": "ls"}, ok=True, observation="fine"),))
    context = replace(request([later]), summary="Half is done.", summarised=12, messages=("Use euros.",))
    whole = "\n".join(str(message["content"]) for message in request_body(context, action_format)["messages"])
    places = [whole.find(text) for text in ("Do it.", "Use euros.", "the first 12 steps", "Half is done.", "go on", "fine")]
    assert places == sorted(places)
    assert min(places) >= 0


def test_native_reads_several_calls_and_keeps_their_ids() -> None:
    answer = ProviderAnswer(content="both", tool_calls=(call('{"command": "a\nb"}'), call("", "finish")))
    action = read_action(answer, request(), "native")
    assert action.thought == "both"
    assert [(made.tool, made.arguments, made.provider_id) for made in action.calls] == [
        ("shell", {"command": "a\nb"}, "x"),
        ("finish", {}, "x"),
    ]


def test_native_text_is_the_reflection_when_one_was_asked_for() -> None:
    answer = ProviderAnswer(content="I was wrong.", tool_calls=(call('{"command": "ls"}'),))
    action = read_action(answer, request(reflect=True), "native")
    assert (action.reflection, action.thought) == ("I was wrong.", "")
    with pytest.raises(ActionUnreadable, match="called no tool"):
        read_action(ProviderAnswer(content="I was wrong."), request(reflect=True), "native")


def test_native_text_alone_finishes() -> None:
    (made,) = read_action(ProviderAnswer(content="All done."), request(), "native").calls
    assert (made.tool, made.arguments) == ("finish", {"answer": "All done."})


def test_native_finds_a_call_written_as_text() -> None:
    text = 'Sure:\n```json\n{"name": "shell", "arguments": {"command": "ls"}}\n```'
    (made,) = read_action(ProviderAnswer(content=text), request(), "native").calls
    assert (made.tool, made.arguments) == ("shell", {"command": "ls"})


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ProviderAnswer(content=""), "empty"),
        (ProviderAnswer(content="", tool_calls=(call('{"command": '),)), "not a JSON object"),
        (ProviderAnswer(content="", tool_calls=(call('{"command": '),), cut_off=True), "cut off"),
        (ProviderAnswer(content="so then", cut_off=True), "cut off"),
    ],
)
def test_native_answers_without_an_action(answer: ProviderAnswer, says: str) -> None:
    with pytest.raises(ActionUnreadable, match=says):
        read_action(answer, request(), "native")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (ProviderAnswer(content="Sure!"), "no JSON object"),
        (ProviderAnswer(content='{"thought": "x"}'), "names no tool"),
        (ProviderAnswer(content='{"tool": "shell", "arguments": 5}'), "not a JSON object"),
        (ProviderAnswer(content='{"thought": "x', cut_off=True), "cut off"),
    ],
)
def test_json_answers_without_an_action(answer: ProviderAnswer, says: str) -> None:
    with pytest.raises(ActionUnreadable, match=says):
        read_action(answer, request(), "json")


def test_json_reads_an_action_with_or_without_chatter() -> None:
    text = '{"reflection": "r", "thought": "t", "tool": "shell", "arguments": {"command": "ls"}}'
    for content in (text, f"Sure:\n{text}\nDone."):
        action = read_action(ProviderAnswer(content=content), request(reflect=True), "json")
        assert (action.reflection, action.thought, action.calls[0].tool) == ("r", "t", "shell")
