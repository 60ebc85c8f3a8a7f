"""One trace per job across all services, read back as exported."""

from __future__ import annotations

import json
import time

from dualtrack.telemetry import genai
from dualtrack.testing.otlp import ExportedSpan, OtlpReceiver
from dualtrack.testing.stack import Stack

SCRIPT = [
    {"calls": [{"tool": "list_files", "arguments": {}}, {"tool": "list_files", "arguments": {}}]},
    {"tool": "shell", "arguments": {"command": "false"}},
    {"tool": "finish", "arguments": {"answer": "done"}},
]


def complete(otlp: OtlpReceiver, trace_id: str, count: int) -> list[ExportedSpan]:
    deadline = time.monotonic() + 60
    while True:
        found = [span for span in otlp.spans() if span.trace_id == trace_id]
        if len(found) >= count or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_a_job_is_one_connected_tree_with_every_model_and_tool_call(stack: Stack, otlp: OtlpReceiver) -> None:
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with stack.client() as client:
        body = {"instructions": f"```script\n{json.dumps(SCRIPT)}\n```", "checks": ["true"]}
        job_id = client.post("/v1/jobs", json=body, headers={"traceparent": caller}).raise_for_status().json()["id"]
    assert stack.wait(job_id)["status"] == "succeeded"
    # request, agent, 3 decisions, their 3 chats, 4 tools (two lists, shell, check), each run in a sandbox: the job's, then the check's own
    spans = complete(otlp, "0af7651916cd43dd8448eb211c80319c", 19)
    assert len(spans) == 19
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    roots = [span for span in spans if span.parent_id not in by_id]
    assert [(root.service, root.parent_id) for root in roots] == [("dualtrack-router", "b7ad6b7169203331")]
    assert {span.service for span in spans} == {"dualtrack-router", "dualtrack-planner", "dualtrack-executor"}
    names = sorted(span.name for span in spans)
    assert names.count("chat deep") == 3
    assert names.count("execute_tool list_files") == 2
    assert names.count("execute_tool shell") == 1
    assert names.count("execute_tool check") == 1
    assert [names.count(f"sandbox.{what}") for what in ("claim", "run", "destroy")] == [2, 4, 1]
    in_sandbox = [span for span in spans if span.name.startswith("sandbox.")]
    assert {by_id[span.parent_id].name.split()[0] for span in in_sandbox if span.parent_id is not None} == {"execute_tool"}
    (agent,) = [span for span in spans if span.name == "invoke_agent default"]
    assert agent.attributes[genai.CONVERSATION_ID] == job_id
    assert agent.parent_id == roots[0].span_id
    children = [span for span in spans if span is not agent and span is not roots[0]]
    assert min(span.start_ns for span in children) >= agent.start_ns
    assert max(span.start_ns for span in children) <= agent.end_ns
    calls = {event["data"]["call_id"]: event for event in stack.events(job_id) if event["type"] == "call.started"}
    tools = [span for span in spans if span.attributes.get(genai.OPERATION) == genai.EXECUTE_TOOL]
    assert {span.attributes[genai.TOOL_CALL_ID] for span in tools} == set(calls)
    assert [span.failed for span in tools if span.name == "execute_tool shell"] == [True]
    chats = [span for span in spans if span.attributes.get(genai.OPERATION) == genai.CHAT]
    assert all(span.attributes[genai.OUTPUT_TOKENS] > 0 for span in chats)


def test_every_log_line_of_a_service_is_json_and_names_its_service(stack: Stack) -> None:
    for name in ("router", "planner", "executor", "scheduler"):
        for line in stack.log(name).read_text().rpartition("\n")[0].splitlines():  # whole ones: it may be writing
            assert json.loads(line)["service"] == name
