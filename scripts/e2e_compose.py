"""The compose stack end to end: build, start, use over HTTP, break, mend, tear down. Run it as scripts/e2e-compose."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from scripts.compose_stack import ROOT, ComposeError, Stack, say

BUILD_S = 1200
UP_S = 300
JOB_S = 180
POLL_S = 0.25
EXECUTORS = 3

T = TypeVar("T")

_END = {"job.succeeded", "job.failed", "job.cancelled", "job.expired"}
_REPORT = """
import csv
with open("orders.csv") as file:
    rows = list(csv.DictReader(file))
total = sum(int(row["quantity"]) * float(row["unit_price"]) for row in rows)
open("report.md", "w").write(f"{len(rows)} orders, {total:.2f}")
"""


class StepFailedError(Exception):
    """Something is not as it should be."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/e2e-compose", description=__doc__)
    parser.add_argument("--images", action="store_true", help="print the public images the stack is made of, and do nothing else")
    parser.add_argument("--keep", action="store_true", help="leave the stack running at the end")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dualtrack-e2e-") as directory:
        stack = Stack(Path(directory))
        if options.images:
            say("\n".join(stack.public_images()))
            return 0
        started = time.monotonic()
        try:
            Scenario(stack).run()
        except (ComposeError, StepFailedError, httpx.HTTPError) as error:
            say(f"FAILED: {type(error).__name__}: {error}")
            with contextlib.suppress(ComposeError):
                say(stack.troubles())
            return 1
        finally:
            if options.keep:
                say(f"left running: project {stack.project}, {stack.url}")
            else:
                with step("tear down"):
                    stack.down()
        say(f"compose end to end: passed in {time.monotonic() - started:.0f} s")
    return 0


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print what is done and how long it took."""
    started = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"  FAIL {time.monotonic() - started:6.1f} s  {title}")
        raise
    say(f"  ok   {time.monotonic() - started:6.1f} s  {title}")


class Scenario:
    """All steps, in order; each leaves the stack whole."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.http = httpx.Client(base_url=stack.url, timeout=30)

    def run(self) -> None:
        """Raises at the first step that fails."""
        stack = self.stack
        with step("build all images"):
            stack.compose("--profile", "*", "build", timeout_s=BUILD_S)
        with step("up -d --wait: everything healthy"):
            stack.compose("up", "-d", "--wait", "--wait-timeout", str(UP_S), timeout_s=UP_S + 30)
        with step("containers: unprivileged, limited, no provider key at the executor, only two ports published"):
            self.hardening()
        with step("ready over HTTP; no key: 401"):
            ready = self.http.get("/readyz")
            expect(ready.status_code == 200, f"/readyz: {ready.status_code} {ready.text}")
            expect(self.http.get("/v1/models").status_code == 401, "a request without a key is answered")
        with step("an API key by `docker compose run cli keys create`"):
            key = stack.compose("run", "--rm", "-T", "cli", "keys", "create", "e2e").strip()
            self.http.headers["Authorization"] = f"Bearer {key}"
            models = [model["id"] for model in self.get("/v1/models")["data"]]
            expect({"fast", "deep"} <= set(models), f"models: {models}")
        with step("chat, plain and streamed"):
            self.chat()
        with step("a job with an input file; artifact by presigned address; events streamed, cut and resumed"):
            self.report()
        with step(f"--scale executor={EXECUTORS}"):
            stack.compose("up", "-d", "--wait", "--no-recreate", "--scale", f"executor={EXECUTORS}", timeout_s=UP_S)
            expect(len(stack.containers("executor")) == EXECUTORS, f"{len(stack.containers('executor'))} executors run")
        with step("docker kill of the executor during a call: another one finishes it"):
            self.kill_executor()
        with step("planner stopped during a job and started again"):
            self.interrupt(lambda: stack.compose("stop", "--timeout", "1", "planner"), lambda: stack.compose("start", "planner"))
        with step("docker kill of rabbitmq during a job; chat goes on without it; started again"):
            self.interrupt(lambda: stack.compose("kill", "rabbitmq"), self.chat, lambda: stack.compose("start", "rabbitmq"))
        with step("everything healthy again"):
            stack.compose("up", "-d", "--wait", "--no-recreate", "--scale", f"executor={EXECUTORS}", timeout_s=UP_S)

    def hardening(self) -> None:
        """What docker itself says of the containers."""
        published: dict[str, list[str]] = {}
        for service in ("router", "planner", "executor", "scheduler"):
            (container,) = self.stack.containers(service)
            known = self.stack.inspect(container)
            host = known["HostConfig"]
            expect(known["Config"]["User"] == "10001:10001", f"{service} runs as {known['Config']['User']!r}")
            expect(host["ReadonlyRootfs"], f"{service} may write to its root")
            expect(host["CapDrop"] == ["ALL"] and not host["CapAdd"], f"{service} has capabilities")
            expect("no-new-privileges:true" in host["SecurityOpt"], f"{service} may gain privileges")
            expect(host["Memory"] > 0 and host["PidsLimit"] > 0, f"{service} has no limits")
        for service in ("router", "planner", "executor", "scheduler", "postgres", "rabbitmq", "minio"):
            (container,) = self.stack.containers(service)
            ports = self.stack.inspect(container)["NetworkSettings"]["Ports"]
            addresses = [f"{binding['HostIp']}:{binding['HostPort']}" for bindings in ports.values() for binding in bindings or ()]
            if addresses:
                published[service] = addresses
        wanted = {"router": [f"127.0.0.1:{self.stack.router_port}"], "minio": [f"127.0.0.1:{self.stack.objects_port}"]}
        expect(published == wanted, f"published: {published}")
        for name, config in self.stack.services().items():
            given = {variable for variable in config.get("environment") or {} if variable.endswith("_API_KEY") or "MODELS__" in variable}
            expect(name in {"router", "planner", "cli"} or not given, f"{name} is given {given}")

    def chat(self) -> None:
        """Both answers say what the scripted model says."""
        body = {"model": "fast", "messages": [{"role": "user", "content": "Hello compose"}]}
        answer = self.post("/v1/chat/completions", body)["choices"][0]["message"]["content"]
        expect(answer == "You said: Hello compose", f"answer: {answer!r}")
        parts, done = [], False
        with self.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
            expect(response.status_code == 200, f"streamed chat: {response.status_code}")
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    choices = json.loads(line[6:])["choices"]
                    parts += [choice["delta"].get("content") or "" for choice in choices]
        expect(done and "".join(parts) == answer, f"streamed: {parts}, done: {done}")

    def report(self) -> None:
        """Upload, submit, follow with a cut, download from the object store."""
        orders = (ROOT / "examples" / "orders.csv").read_bytes()
        uploaded = self.http.post("/v1/files", files={"file": ("orders.csv", orders, "text/csv")})
        expect(uploaded.status_code == 201, f"upload: {uploaded.status_code} {uploaded.text}")
        job = self.submit(
            [
                {"tool": "execute_python", "arguments": {"code": _REPORT}},
                {"tool": "save_artifact", "arguments": {"path": "report.md"}},
                {"tool": "finish", "arguments": {"answer": "The report is written."}},
            ],
            inputs=[{"file_id": uploaded.json()["id"]}],
            checks=["test -s report.md"],
        )
        events = self.follow(job, cut_after=3)
        expect([event["seq"] for event in events] == list(range(1, len(events) + 1)), f"sequence: {[e['seq'] for e in events]}")
        self.expect_success(job)
        (artifact,) = self.get(f"/v1/jobs/{job}/artifacts")["data"]
        redirect = self.http.get(artifact["content_url"])
        address = redirect.headers.get("location", "")
        expect(redirect.status_code == 302 and address.startswith(self.stack.objects_url), f"{redirect.status_code} {address}")
        content = httpx.get(address, timeout=30)
        expect(content.status_code == 200, f"the presigned address answers {content.status_code}: {content.text[:300]}")
        rows = list(csv.DictReader(io.StringIO(orders.decode())))
        total = sum(int(row["quantity"]) * float(row["unit_price"]) for row in rows)
        expect(content.text == f"{len(rows)} orders, {total:.2f}", f"report: {content.text[:300]!r}")
        expect(httpx.get(address.partition("?")[0], timeout=30).status_code == 403, "the object store gives without a signature")

    def kill_executor(self) -> None:
        """The call that died with its executor runs again elsewhere, and once it is finished never again."""
        job = self.submit(
            [
                {"tool": "shell", "arguments": {"command": "echo begun >> log; sleep 6.5; echo done >> log"}},
                {"tool": "shell", "arguments": {"command": "cat log"}},
                {"tool": "finish", "arguments": {"answer": "done"}},
            ]
        )
        victim = wait_for(lambda: next((one for one in self.stack.containers("executor") if self.sleeping(one)), None), "the call to start")
        self.stack.docker("kill", victim)
        self.wait_job(job)
        self.expect_success(job)
        calls = [call for page in self.get(f"/v1/jobs/{job}/steps")["data"] for call in page["calls"]]
        expect(calls[0]["attempt"] > 1, f"the killed call ended in attempt {calls[0]['attempt']}")
        observed = calls[1]["observation"]
        expect(observed.count("begun") == 1 and observed.count("done") == 1, f"the call ran from its snapshot: {observed!r}")

    def sleeping(self, container: str) -> bool:
        """Whether the sandboxed command runs in this container."""
        return "sleep 6.5" in self.stack.docker("top", container, "-eo", "pid,args")

    def interrupt(self, *disturbances: Callable[[], object]) -> None:
        """A job of several slow steps, disturbed in the middle, succeeds."""
        steps = [{"tool": "shell", "arguments": {"command": f"echo {number}"}, "delay_s": 1} for number in range(4)]
        job = self.submit([*steps, {"tool": "finish", "arguments": {"answer": "done"}}])
        wait_for(lambda: self.get(f"/v1/jobs/{job}")["step"] >= 1, "the first step")
        for disturb in disturbances:
            disturb()
        self.wait_job(job)
        self.expect_success(job)

    def submit(self, script: list[dict[str, Any]], **more: Any) -> str:  # noqa: ANN401 - fields of a job
        """A job whose instructions carry the model's script; its id."""
        instructions = f"Do as the script says.\n\n```script\n{json.dumps(script)}\n```\n"
        return str(self.post("/v1/jobs", {"instructions": instructions, **more})["id"])

    def follow(self, job: str, *, cut_after: int) -> list[dict[str, Any]]:
        """All events by SSE to the job's end; the first connection is cut after some of them."""
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + JOB_S
        while not events or events[-1]["type"] not in _END:
            expect(time.monotonic() < deadline, f"no end after {JOB_S} s, {len(events)} events")
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": str(events[-1]["seq"])} if events else {})
            first = not events
            with self.http.stream("GET", f"/v1/jobs/{job}/events", headers=headers) as response:
                expect(response.status_code == 200, f"events: {response.status_code}")
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        events.append(json.loads(line[6:]))
                    if first and len(events) == cut_after:
                        break
        return events

    def wait_job(self, job: str) -> None:
        """Until it has ended."""
        wait_for(lambda: self.get(f"/v1/jobs/{job}")["finished_at"], f"the end of {job}", JOB_S)

    def expect_success(self, job: str) -> None:
        """Its final status is success."""
        view = self.get(f"/v1/jobs/{job}")
        expect(view["status"] == "succeeded", f"{job}: {view['status']} ({view['reason']}: {view['message']})")

    def get(self, path: str) -> dict[str, Any]:
        """A JSON resource."""
        response = self.http.get(path)
        expect(response.status_code == 200, f"GET {path}: {response.status_code} {response.text[:500]}")
        return dict(response.json())

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a POST gives."""
        response = self.http.post(path, json=body)
        expect(response.is_success, f"POST {path}: {response.status_code} {response.text[:500]}")
        return dict(response.json())


def expect(condition: object, otherwise: str) -> None:
    """Raises `StepFailedError` unless it holds."""
    if not condition:
        raise StepFailedError(otherwise)


def wait_for(look: Callable[[], T | None], what: str, timeout_s: float = 60) -> T:
    """What `look` gives once it gives something true."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    raise StepFailedError(f"waited {timeout_s:g} s for {what}")


if __name__ == "__main__":
    sys.exit(main())
