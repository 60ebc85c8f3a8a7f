"""The clients of a chaos run: each submits one job until that is answered, then follows it, resuming wherever the stream breaks off."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import httpx

from dualtrack.domain.job import DEFAULT_AGENT_TOOLS
from dualtrack.domain.tool import DELEGATE_TOOL
from dualtrack.testing.chaos.jobs import EXTERNAL_TOOL, POLICY, PlannedJob, instructions
from dualtrack.testing.chaos.judge import Record

_END: Final = frozenset({"job.succeeded", "job.failed", "job.cancelled", "job.expired"})
_PAUSE_S: Final = 0.1
_CUT_EVERY: Final = 7
"""Events after which a client hangs up by itself, to resume."""
_READS: Final = 50
"""Tries to read what is there at the end."""
_TIMEOUT: Final = httpx.Timeout(10, read=30)


class Clients:
    """One thread a job. The routers are asked by turns, as by a load balancer."""

    def __init__(self, base_urls: Sequence[str], api_key: str, plans: Sequence[PlannedJob], *, deadline_s: float, at_once: int) -> None:
        """`deadline_s`: seconds from now after which a job that has not ended is stuck; `at_once`: jobs under way together."""
        self._urls = base_urls
        self._headers = {"authorization": f"Bearer {api_key}"}
        self._deadline = time.monotonic() + deadline_s
        self._slots = threading.Semaphore(at_once)
        self.records = [Record(plan, streamed=[]) for plan in plans]
        self._threads = [threading.Thread(target=self._follow, args=(record, n), daemon=True) for n, record in enumerate(self.records)]

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def progress(self) -> int:
        """Events that clients have seen so far."""
        return sum(len(record.streamed or ()) for record in self.records)

    def ended(self) -> int:
        """Jobs whose end has been seen."""
        return sum(any(event["type"] in _END for event in (record.streamed or [])[-1:]) for record in self.records)

    def done(self) -> bool:
        """Whether every client has seen its job's end, or given up."""
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self) -> list[Record]:
        """Wait for all, then read the state and pages of every job and its children; the records."""
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        with httpx.Client(headers=self._headers, timeout=_TIMEOUT, trust_env=False) as client:
            for record in self.records:
                if record.job_id is not None:
                    self._read(client, record, record.job_id)
                    if record.plan.child is not None:
                        record.children = [Record(record.plan.child, child_id) for child_id in self._children(client, record.job_id)]
                for child in record.children:
                    self._read(client, child, str(child.job_id))
        return self.records

    def _follow(self, record: Record, turn: int) -> None:
        with self._slots, httpx.Client(headers=self._headers, timeout=_TIMEOUT, trust_env=False) as client:
            approvals: list[str] = []
            while time.monotonic() < self._deadline:
                url = self._urls[turn % len(self._urls)]
                turn += 1
                try:
                    if record.job_id is None:
                        record.job_id = self._submit(client, url, record.plan)
                    elif approvals:
                        self._approve(client, url, approvals)
                    elif self._stream(client, url, record, approvals):
                        return
                except httpx.HTTPError:
                    time.sleep(_PAUSE_S)

    def _submit(self, client: httpx.Client, url: str, plan: PlannedJob) -> str | None:
        tools = [*DEFAULT_AGENT_TOOLS, EXTERNAL_TOOL, *([DELEGATE_TOOL] if plan.child else [])]
        body = {
            "instructions": instructions(plan.script),
            "agent": {"tools": tools, "policies": [POLICY]},
            "webhook": None if plan.webhook is None else {"url": plan.webhook, "events": ["job.succeeded"]},
            "limits": {"steps": plan.steps + 10},
            "metadata": {"token": plan.token},
        }
        answer = client.post(f"{url}/v1/jobs", json=body, headers={"idempotency-key": plan.token})
        if answer.status_code >= 500:
            time.sleep(_PAUSE_S)
            return None
        return str(answer.raise_for_status().json()["id"])

    @staticmethod
    def _approve(client: httpx.Client, url: str, approvals: list[str]) -> None:
        """Give consent, again and again until it is answered."""
        if client.post(f"{url}/v1/approvals/{approvals[0]}/approve").status_code < 500:
            del approvals[0]
        else:
            time.sleep(_PAUSE_S)

    def _stream(self, client: httpx.Client, url: str, record: Record, approvals: list[str]) -> bool:
        """Take events until the job's end (True), or until the stream breaks off, has been cut, or somebody is asked something."""
        seen = record.streamed
        assert seen is not None
        headers = {"accept": "text/event-stream"} | ({"last-event-id": str(seen[-1]["seq"])} if seen else {})
        taken = 0
        with client.stream("GET", f"{url}/v1/jobs/{record.job_id}/events", headers=headers) as stream:
            if stream.status_code != 200:
                time.sleep(_PAUSE_S)
                return False
            for line in stream.iter_lines():
                if time.monotonic() > self._deadline:
                    return True
                if not line.startswith("data: "):
                    continue
                seen.append(json.loads(line.removeprefix("data: ")))
                taken += 1
                if seen[-1]["type"] in _END:
                    return True
                if seen[-1]["type"] == "approval.requested":
                    approvals.append(seen[-1]["data"]["approval_id"])
                if approvals or taken == _CUT_EVERY:
                    return False
        return False

    def _children(self, client: httpx.Client, job_id: str) -> list[str]:
        """Ids of a job's children, as the platform lists them."""
        for attempt in range(_READS):
            with contextlib.suppress(httpx.HTTPError):
                listed = client.get(f"{self._urls[attempt % len(self._urls)]}/v1/jobs", params={"parent_id": job_id})
                if listed.status_code == 200:
                    return [str(job["id"]) for job in listed.json()["data"]]
            time.sleep(_PAUSE_S)
        return []

    def _read(self, client: httpx.Client, record: Record, job_id: str) -> None:
        for attempt in range(_READS):
            url = self._urls[attempt % len(self._urls)]
            with contextlib.suppress(httpx.HTTPError):
                shown = client.get(f"{url}/v1/jobs/{job_id}")
                if shown.status_code == 404:
                    return
                if shown.status_code == 200:
                    events = self._pages(client, url, job_id)
                    job = shown.json()
                    record.status, record.message, record.events = job["status"], job.get("message"), events
                    return
            time.sleep(_PAUSE_S)

    @staticmethod
    def _pages(client: httpx.Client, url: str, job_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = client.get(f"{url}/v1/jobs/{job_id}/events", params={"after": len(found), "limit": 50}).raise_for_status().json()
            found += page["data"]
            if not page["has_more"]:
                return found
