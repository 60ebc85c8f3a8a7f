"""Jobs through HTTP, with every service a process of its own over real RabbitMQ, PostgreSQL and S3."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from openai import OpenAI

from dualtrack.testing.stack import Stack

END = {"job.succeeded", "job.failed", "job.cancelled", "job.expired"}


def python(code: str) -> dict[str, Any]:
    return {"tool": "execute_python", "arguments": {"code": code}}


def shell(command: str) -> dict[str, Any]:
    return {"tool": "shell", "arguments": {"command": command}}


def finish(answer: str = "done") -> dict[str, Any]:
    return {"tool": "finish", "arguments": {"answer": answer}}


def gapless(events: list[dict[str, Any]]) -> bool:
    return [event["seq"] for event in events] == list(range(1, len(events) + 1))


def finished_once(events: list[dict[str, Any]]) -> bool:
    """Every call that was asked for ended exactly once."""
    asked = {call["id"] for event in events if event["type"] == "step.decided" for call in event["data"]["calls"]}
    ended = Counter(event["data"]["call_id"] for event in events if event["type"] in {"call.finished", "call.cancelled"})
    return set(ended) == asked and set(ended.values()) == {1}


def test_a_file_goes_in_and_a_report_comes_out(stack: Stack) -> None:
    with stack.client() as client:
        uploaded = client.post("/v1/files", files={"file": ("in.csv", b"n\n1\n2\n3\n")}).raise_for_status().json()
        script = [
            {"tool": "update_plan", "arguments": {"steps": [{"title": "sum", "status": "in_progress"}]}},
            python("rows = open('data/in.csv').read().split()[1:]; open('report.md', 'w').write(f'sum: {sum(map(int, rows))}')"),
            {"tool": "save_artifact", "arguments": {"path": "report.md"}},
            finish("the sum is in report.md"),
        ]
        job_id = stack.submit(script, inputs=[{"file_id": uploaded["id"], "path": "data/in.csv"}], checks=["grep -q 'sum: 6' report.md"])
        job = stack.wait(job_id)
        assert (job["status"], job["answer"]) == ("succeeded", "the sum is in report.md")
        events = stack.events(job_id)
        assert gapless(events)
        artifacts = client.get(f"/v1/jobs/{job_id}/artifacts").raise_for_status().json()["data"]
        assert [artifact["name"] for artifact in artifacts] == ["report.md"]
        answer = client.get(f"/v1/artifacts/{artifacts[0]['id']}/content")
        assert answer.is_redirect  # to the S3 server, presigned
        content = httpx.get(answer.headers["location"], trust_env=False, timeout=60)
        assert content.text == "sum: 6"
        assert 'filename="report.md"' in content.headers["content-disposition"]
        steps = client.get(f"/v1/jobs/{job_id}/steps").raise_for_status().json()["data"]
        assert [call["tool"] for step in steps for call in step["calls"]] == [
            "update_plan",
            "execute_python",
            "save_artifact",
            "finish",
            "check",
        ]


def test_the_openai_package_chats_plain_and_streamed(stack: Stack) -> None:
    client = OpenAI(base_url=f"{stack.base_url}/v1", api_key=stack.api_key, max_retries=0)
    messages: Any = [{"role": "user", "content": "hello there"}]
    plain = client.chat.completions.create(model="fast", messages=messages)
    assert "hello there" in (plain.choices[0].message.content or "")
    assert plain.usage is not None
    assert plain.usage.total_tokens > 0
    chunks = list(client.chat.completions.create(model="fast", messages=messages, stream=True, stream_options={"include_usage": True}))
    assert "hello there" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    assert {model.id for model in client.models.list()} >= {"fast", "deep"}


def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(stack: Stack) -> None:
    job_id = stack.submit([shell(f"sleep 0.2; echo {n}") for n in range(6)] + [finish()])
    seen: list[dict[str, Any]] = []
    connections = 0
    while not seen or seen[-1]["type"] not in END:
        connections += 1
        headers = {"accept": "text/event-stream"} | ({"last-event-id": str(seen[-1]["seq"])} if seen else {})
        with stack.client() as client, client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as stream:
            taken = 0
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    taken += 1
                if taken == 4:
                    break  # the connection is cut here
        assert connections < 100
    assert connections > 3
    assert gapless(seen)
    assert seen == stack.events(job_id)


def test_cancel_reaches_a_running_command_at_once(stack: Stack) -> None:
    job_id = stack.submit([shell("sleep 300")])
    deadline = time.monotonic() + 60
    while not any(event["type"] == "call.started" for event in stack.events(job_id)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = time.monotonic()
    with stack.client() as client:
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code in {200, 202}
        assert stack.wait(job_id, timeout_s=90)["status"] == "cancelled"
        assert time.monotonic() - started < 100  # a sleep of 300 s would show
        assert client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
    assert finished_once(stack.events(job_id))


def test_many_jobs_at_once_all_end_well(stack: Stack) -> None:
    jobs = [stack.submit([shell(f"echo {n} > n.txt"), shell("cat n.txt"), finish(str(n))]) for n in range(20)]
    for n, job_id in enumerate(jobs):
        job = stack.wait(job_id, timeout_s=120)
        assert (job["status"], job["answer"]) == ("succeeded", str(n))
        events = stack.events(job_id)
        assert gapless(events)
        assert finished_once(events)


@pytest.mark.parametrize("victim", ["planner", "executor", "scheduler"])
def test_kill_9_of_a_service_in_the_middle_of_a_job_loses_and_repeats_nothing(stack: Stack, victim: str) -> None:
    """The victim is killed while it works on the job (the model or the command is slow there), and another one is started."""
    slow = {"delay_s": 2.0} if victim == "planner" else {}
    script = [shell("echo 1 >> log"), {**shell("sleep 2; echo 2 >> log"), **slow}, shell("echo 3 >> log; cat log"), finish()]
    job_id = stack.submit(script)
    wanted = ("step.decided", 1) if victim == "planner" else ("call.started", 2)
    deadline = time.monotonic() + 60
    while sum(event["type"] == wanted[0] for event in stack.events(job_id)) < wanted[1]:
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.02)
    if victim == "planner":  # its first decision is out: wait until it asks for the second
        while sum(event["type"] == "call.finished" for event in stack.events(job_id)) < 1:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
    stack.kill(victim)
    stack.start(victim)
    job = stack.wait(job_id, timeout_s=100)  # less than the lease of 120 s
    assert job["status"] == "succeeded", stack.logs()
    events = stack.events(job_id)
    assert gapless(events)
    assert finished_once(events)
    observed = [
        event["data"]["observation"].split() for event in events if event["type"] == "call.finished" and event["data"]["tool"] == "shell"
    ]
    assert observed[-1] == ["1", "2", "3"]


def test_kill_9_of_the_router_keeps_jobs_going(stack: Stack) -> None:
    job_id = stack.submit([shell("sleep 1"), finish()])
    stack.kill("router")
    stack.start("router")
    stack.wait_ready()
    assert stack.wait(job_id)["status"] == "succeeded"


def test_two_executors_share_the_work_and_either_goes_on_from_the_others_workspace(stack: Stack) -> None:
    stack.start("executor", name="executor-2")
    stack.wait_healthy("executor-2")
    jobs = [stack.submit([shell(f"echo {n} >> log") for n in range(5)] + [shell("cat log"), finish()]) for _ in range(6)]
    for job_id in jobs:
        assert stack.wait(job_id, timeout_s=120)["status"] == "succeeded"
        last = [event for event in stack.events(job_id) if event["type"] == "call.finished"][-2]
        assert last["data"]["observation"].split() == ["0", "1", "2", "3", "4"]
    stack.stop("executor-2")


def test_the_executor_has_no_provider_key(stack: Stack) -> None:
    job_id = stack.submit([shell("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"), finish()])
    stack.wait(job_id)
    shown = json.dumps(stack.events(job_id))
    assert "AWS" not in shown
    assert "SECRET" not in shown.upper().replace("SECRETS", "")
    assert "postgresql" not in shown
