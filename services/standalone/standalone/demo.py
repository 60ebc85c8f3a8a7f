"""One chat question and one long-horizon job, over HTTP as any client would, and the proof that the report's figures are right."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from cli.client import CHAT_SILENCE_S, Client
from cli.download import safe_name
from cli.follow import Follower
from cli.progress import JobProgress
from cli.text import clean

QUESTION: Final = "In one or two sentences: what is a message queue good for?"
INSTRUCTIONS: Final = (
    "orders.csv holds a shop's orders, one a line; an order's revenue is quantity times unit_price. Write a short report into report.md: "
    "the total revenue, the revenue of each region, and the revenue of each product. All with two decimals."
)
REPORT: Final = "report.md"
CHECK: Final = "check_report.py"
"""Beside the orders: computes every figure again. It is the job's check, inside the sandbox, and the demo's, outside."""


class DemoFailed(Exception):
    """The demo did not come out right; the message says what."""


def run(client: Client, orders: Path, keep: Path) -> None:
    """Ask, submit, watch, check; artifacts are put into `keep`. Raises `DemoFailed`."""
    _ask(client)
    started = time.monotonic()
    job_id = _submit(client, orders)
    progress = _watch(client, job_id)
    took = time.monotonic() - started
    if progress.status != "succeeded":
        raise DemoFailed(f"the job ended as {progress.status}: {progress.message or progress.reason}")
    saved = [_save(client, artifact, keep) for artifact in progress.artifacts]
    print(f"\nanswer    {clean(progress.answer or '')}")
    print(f"steps     {progress.step} in {took:.0f} s, {progress.spent()}")
    for path in dict.fromkeys(saved):
        print(f"artifact  {path}")
    report = next((path for path in reversed(saved) if path.name == REPORT), None)
    if report is None:
        raise DemoFailed(f"the job saved no artifact {REPORT}")
    text = report.read_text(encoding="utf-8", errors="replace")
    print("\n" + "\n".join(f"    {clean(line)}" for line in text.splitlines()) + "\n")
    proof = subprocess.run(
        [sys.executable, "-I", str(orders.with_name(CHECK)), str(orders), str(report)], capture_output=True, text=True, check=False
    )
    if proof.returncode != 0:
        raise DemoFailed(proof.stdout.strip() or proof.stderr.strip())
    print(f"{proof.stdout.strip()} (computed again from {orders.name})")


def _ask(client: Client) -> None:
    print(f"\nfast track: {QUESTION}\n")
    started = time.monotonic()
    first: float | None = None
    body = {"model": "fast", "messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": 200}
    print("    ", end="")
    with client.stream("POST", "/v1/chat/completions", body=body, silence_s=CHAT_SILENCE_S) as events:
        for event in events:
            if event.data == "[DONE]":
                break
            chunk = json.loads(event.data)
            if "error" in chunk:
                raise DemoFailed(f"the chat failed: {chunk['error'].get('message')}")
            text = "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
            if text and first is None:
                first = time.monotonic() - started
            print(clean(text), end="", flush=True)
    if first is None:
        raise DemoFailed("the chat gave an empty answer")
    print(f"\n\n    (first words after {first:.1f} s, all after {time.monotonic() - started:.1f} s)")


def _submit(client: Client, orders: Path) -> str:
    print(f"\ndeep track: {INSTRUCTIONS}\n")
    files = [orders, orders.with_name(CHECK)]
    body = {
        "instructions": INSTRUCTIONS,
        "inputs": [{"file_id": client.upload(file, name=file.name)["id"], "path": file.name} for file in files],
        "checks": [f"python3 {CHECK} {orders.name} {REPORT}"],
        "outputs": [REPORT],
        "limits": {"steps": 20, "wall_time_s": 1800},
        "metadata": {"example": "orders"},
    }
    return str(client.post("/v1/jobs", body)["id"])


def _watch(client: Client, job_id: str) -> JobProgress:
    progress = JobProgress(details=True)
    for event in Follower(client, job_id, on_break=lambda reason, _: print(f"(stream: {reason}; going on)", file=sys.stderr)):
        for line in progress.feed(event):
            print(line, flush=True)
    return progress


def _save(client: Client, artifact: dict[str, Any], keep: Path) -> Path:
    keep.mkdir(parents=True, exist_ok=True)
    path = keep / safe_name(str(artifact["name"]), "artifact")
    with client.download(f"/v1/artifacts/{artifact['artifact_id']}/content") as response, path.open("wb") as file:
        for chunk in response.iter_bytes():
            file.write(chunk)
    return path
