"""A job's sandbox from call to call: what lasts, what the agent is told when it does not, and what is seen while a command runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from dualtrack.db import steps
from dualtrack.domain.events import Event, EventType
from dualtrack.domain.job import Job
from dualtrack.domain.lifecycle import JobStatus
from dualtrack.sandbox.sessions import EndReason
from dualtrack.testing.objects import MemoryStore
from dualtrack.testing.stepper import Stepper
from dualtrack.testing.waiting import comes_true

from .conftest import CountingSandbox, Make, cancel, finish, python, shell

_PORT = 8731
_SERVER = f"python3 -m http.server {_PORT} --bind 127.0.0.1 > server.log 2>&1 &"
_ASK = (
    "import time, urllib.request\n"
    "for _ in range(600):\n"
    "  try: print(urllib.request.urlopen('http://127.0.0.1:8731/a.txt').read().decode()); break\n"
    "  except OSError: time.sleep(0.05)\n"
)


def cell(code: str) -> dict[str, Any]:
    return {"tool": "execute_python", "arguments": {"code": code, "session": "persistent"}}


def previews(stepper: Stepper, job: Job) -> list[str]:
    return [call.preview for step in stepper.steps(job) for call in step.calls if call.tool != "finish"]


def host_processes(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


def test_variables_last_between_persistent_calls_only(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([cell("x = 41"), cell("x += 1; print(x)"), python("print('x' in dir())"), finish()])
    job = stepper.run(stepper.submit())
    assert job.status is JobStatus.SUCCEEDED
    assert [text.strip() for text in previews(stepper, job)][1:] == ["42", "False"]
    assert len(sandbox.claimed) == 1


def test_a_server_goes_on_between_calls_and_ends_with_its_job(make: Make) -> None:
    stepper = make([shell(f"echo hello > a.txt; {_SERVER}"), python(_ASK), finish()])
    job = stepper.run(stepper.submit())
    assert [text.strip() for text in previews(stepper, job)][1] == "hello"
    assert comes_true(lambda: not host_processes(f"http.server {_PORT} "))


def test_what_background_processes_write_is_in_the_next_snapshot(make: Make) -> None:
    writer = "python3 -c \"import time\nfor n in range(1000):\n  open('n', 'w').write(str(n)); time.sleep(0.01)\" & "
    stepper = make([shell(writer), shell("until test -s n; do sleep 0.05; done; echo there"), finish()])
    job = stepper.run(stepper.submit())
    assert previews(stepper, job)[1].strip().splitlines()[0] == "there"
    assert job.status is JobStatus.SUCCEEDED


def test_a_limit_ends_the_session_and_the_agent_is_told(make: Make, sandbox: CountingSandbox) -> None:
    slow = {"tool": "shell", "arguments": {"command": "echo kept > kept.txt; sleep 60", "timeout_s": 1}}
    stepper = make([cell("x = 1"), slow, cell("import os; print('x' in dir(), os.path.exists('kept.txt'))"), finish()])
    job = stepper.run(stepper.submit())
    _, limit, after = previews(stepper, job)
    assert "[killed: wall time limit 1 s]" in limit
    assert "Python variables are gone" in limit
    assert after.strip().splitlines()[0] == "False True"
    assert [session.ended for session in sandbox.claimed] == [EndReason.LIMIT, None]


def test_another_executor_goes_on_from_the_snapshot_and_says_what_is_lost(make: Make) -> None:
    stepper = make([cell("x = 1\nopen('f', 'w').write('x')"), cell("print('x' in dir(), open('f').read())"), finish()])
    other = make([])
    job = stepper.submit()
    while not stepper.steps(job) or stepper.steps(job)[0].calls[0].finished_at is None:
        stepper.ring()
    while len(stepper.steps(job)) == 1:
        stepper.ring()
    stepper.executor, other.executor = other.executor, stepper.executor
    job = stepper.run(job)
    said, told = previews(stepper, job)[1].strip().splitlines()
    assert said == "False x"
    assert "(this call runs elsewhere or after a restart): its background processes and Python variables are gone" in told


def test_output_is_seen_while_the_command_runs(make: Make) -> None:
    stepper = make([shell("echo one; while [ ! -e go ]; do sleep 0.05; done; echo two"), finish()])
    job = stepper.submit()
    stepper.ring()
    thread = threading.Thread(target=stepper.ring)
    thread.start()

    def seen() -> list[Event]:
        return [event for event in stepper.events(job) if event.type is EventType.CALL_OUTPUT]

    assert comes_true(lambda: bool(seen()))
    (event,) = seen()
    (call,) = stepper.steps(job)[0].calls
    assert event.data["text"] == "one\n"
    assert (event.data["call_id"], event.data["channel"], event.data["offset"], event.data["skipped"]) == (call.id, "stdout", 0, 0)
    assert call.finished_at is None
    cancel(stepper, job)
    thread.join()
    assert stepper.run(job).status is JobStatus.CANCELLED


def test_more_output_than_an_observation_holds_is_an_artifact(make: Make, store: MemoryStore) -> None:
    stepper = make([shell("seq 1 400000"), finish()], sandbox={"output_bytes": 100_000, "spool_bytes": 1_000_000})
    job = stepper.run(stepper.submit())
    with stepper.runtime.database.transaction() as tx:
        (artifact,) = steps.artifact_page(tx, job.id, limit=10)
    whole = "".join(f"{number}\n" for number in range(1, 400_001)).encode()
    assert store.get(artifact.blob_key) == whole[100_000:1_100_000]
    (text,) = previews(stepper, job)
    assert f"[beginning of the rest of stdout, kept as an artifact: {artifact.name}, 976.6 KiB]" in text


def test_nothing_that_the_agent_has_left_running_meddles_with_a_check(make: Make, sandbox: CountingSandbox) -> None:
    served = f"python3 -c \"import socket; socket.create_connection(('127.0.0.1', {_PORT}), 5)\""
    stepper = make([shell(f"echo hello > a.txt; {_SERVER}"), python(_ASK), finish()])
    job = stepper.run(stepper.submit(checks=[f"! {served}", "grep hello a.txt"]))
    assert (job.status, previews(stepper, job)[1].strip()) == (JobStatus.SUCCEEDED, "hello")
    assert len(sandbox.claimed) == 3


def test_no_session_is_claimed_for_what_needs_none(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([{"tool": "read_artifact", "arguments": {"call_id": "call_x"}}, finish()])
    stepper.run(stepper.submit())
    assert sandbox.claimed == []


def test_an_agent_s_template_is_what_its_sandbox_has(make: Make, sandbox: CountingSandbox) -> None:
    stepper = make([shell("true"), finish(), shell("true")])
    assert stepper.run(stepper.submit(agent={"template": "shell"})).status is JobStatus.SUCCEEDED
    assert [session.request.template for session in sandbox.claimed] == ["shell"]
    job = stepper.run(stepper.submit(agent={"template": "no-such-one"}))
    assert (job.status, job.reason) == (JobStatus.FAILED, "sandbox_unavailable")
    assert "no sandbox template 'no-such-one', only default, python-data, shell" in (job.message or "")
