"""`dualtrack jobs`: what is shown of a job, and what steers it."""

from __future__ import annotations

import json

import httpx

from cli.outcome import Exit

from .conftest import JOB, Router, Run, job_event, sse


def test_a_job_that_waits_for_its_children_shows_them_and_what_the_family_used(router: Router, run: Run) -> None:
    children = [
        {"id": "job_2", "call_id": "call_2", "status": "waiting", "reason": "budget", "message": "Extend job_1."},
        {"id": "job_3", "call_id": "call_3", "status": "running", "reason": None, "message": None},
    ]
    usage = {"input_tokens": 12_000, "output_tokens": 34, "cached_tokens": 5, "total_tokens": 12_034, "cost_usd": "0.5"}
    family = {"jobs": 3, "live": 2, "waiting": 1, "step": 9, "usage": usage, "complete": True}
    job = {**JOB, "status": "running", "waiting_for": {"reason": "children", "children": children}, "family": family}
    router.on("GET /v1/jobs/job_1", job)
    shown = run("jobs", "show", "job_1").stdout
    assert "status        running (waits for 2 children)\n" in shown
    assert "waits for     child job_2, waiting (budget): Extend job_1.\n              child job_3, running\n" in shown
    assert "family        3 below it, 2 live, 1 waiting for somebody\n" in shown
    assert "all together: 9 steps, 12,000 in (5 from cache), 34 out, $0.5\n" in shown
    router.on("GET /v1/jobs", {"object": "list", "data": [job], "has_more": False})
    assert "running (waits for 2 children)" in run("jobs", "list").stdout
    router.on("GET /v1/jobs/job_1", {**job, "family": {**family, "complete": False}})
    assert "at least 3 below it" in run("jobs", "show", "job_1").stdout


def test_list(router: Router, run: Run) -> None:
    router.on("GET /v1/jobs", {"data": [{**JOB, "status": "failed", "reason": "limit_steps"}], "has_more": True, "next_cursor": "job_1"})
    result = run("jobs", "list", "--status", "failed", "--status", "expired", "--limit", "1")
    assert result.stdout.splitlines()[1] == "job_1\tfailed (limit_steps)\t0\t2026-11-30 08:00:00Z\tSummarise"
    assert "more" in result.stderr
    assert router.asked[0].url.params.get_list("status") == ["failed", "expired"]
    run("jobs", "list", "--since", "2026-11-30T08:00:00+01:00", "--schedule", "sched_1", "--reason", "paused", "--oldest-first")
    asked = dict(router.asked[1].url.params)
    asked.pop("limit")
    assert asked.pop("fields").split(",") == ["id", "status", "reason", "waiting_for", "step", "created_at", "instructions"]
    assert asked == {"created_after": "2026-11-30T08:00:00+01:00", "schedule_id": "sched_1", "reason": "paused", "order": "asc"}
    run("jobs", "list", "--json")
    assert "fields" not in router.asked[-1].url.params, "all of a job, for programs"
    run("jobs", "list", "--limit", "1", "--agent", "writer", "--parent", "job_0", "--metadata", "team=finance", "--metadata", "a=b=c")
    asked = dict(router.asked[-1].url.params)
    asked.pop("fields")
    assert asked == {"agent": "writer", "parent_id": "job_0", "metadata.team": "finance", "metadata.a": "b=c", "limit": "1"}
    assert run("jobs", "list", "--metadata", "team").exit_code == Exit.USAGE


def test_show(router: Router, run: Run) -> None:
    router.on("GET /v1/jobs/job_1", {**JOB, "status": "succeeded", "answer": "Line\n\x1b]0;x\x07end"})
    result = run("jobs", "show", "job_1")
    assert result.exit_code == 0
    assert "plan          [x] Read\n" in result.stdout
    assert "answer        Line\n              end\n" in result.stdout
    assert json.loads(run("jobs", "show", "job_1", "--json").stdout)["answer"].startswith("Line\n\x1b")


def test_cancel(router: Router, run: Run) -> None:
    router.on("POST /v1/jobs/job_1/cancel", {**JOB, "status": "running"}, 202)
    result = run("jobs", "cancel", "job_1")
    assert (result.exit_code, result.stdout) == (0, "running\n")
    assert "stops as soon as" in result.stderr


def test_steps_and_a_whole_observation(router: Router, run: Run) -> None:
    call = {
        "id": "call_1",
        "tool": "shell",
        "arguments": {"command": "ls"},
        "status": "succeeded",
        "observation": "a\nb",
        "truncated": True,
        "started_at": "2026-11-30T08:00:00Z",
        "finished_at": "2026-11-30T08:00:02Z",
    }
    step = {"number": 1, "thought": "Look", "reflection": "", "note": "", "model": "qwen", "calls": [call]}
    router.on("GET /v1/jobs/job_1/steps", {"data": [step], "has_more": False, "next_cursor": None})
    assert run("jobs", "steps", "job_1").stdout.splitlines() == [
        "step 1  qwen",
        "  thought: Look",
        "  succeeded shell ls in 2.0 s  call_1",
        "      a",
        "      b",
        "      (shortened; all of it: dualtrack jobs observation job_1 call_1)",
    ]
    router.on("GET /v1/jobs/job_1/calls/call_1/observation", lambda _: httpx.Response(200, text="a\nb\nc"))
    assert run("jobs", "observation", "job_1", "call_1").stdout == "a\nb\nc\n"
    assert json.loads(run("jobs", "observation", "job_1", "call_1", "--json").stdout)["text"] == "a\nb\nc"


def test_extending_a_job_says_what_is_still_short(run: Run, router: Router) -> None:
    router.on("POST /v1/jobs/job_1/extend", {**JOB, "status": "waiting", "reason": "budget", "message": "5 of the job's 5 steps are used"})
    result = run("jobs", "extend", "job_1", "--max-steps", "9", "--max-cost", "1.5")
    assert (result.exit_code, result.stdout.strip()) == (0, "waiting (budget)")
    assert "5 of the job's 5 steps" in result.stderr
    assert router.body() == {"limits": {"steps": 9, "cost_usd": "1.5"}}
    assert run("jobs", "extend", "job_1").exit_code == Exit.USAGE


def test_pause_and_resume(run: Run, router: Router) -> None:
    router.on("POST /v1/jobs/job_1/pause", {**JOB, "status": "running", "hold": "paused"}, status=202)
    later = run("jobs", "pause", "job_1")
    assert (later.exit_code, later.stdout) == (0, "running\n")
    assert "as soon as what runs is finished" in later.stderr
    router.on("POST /v1/jobs/job_1/pause", {**JOB, "status": "waiting", "reason": "paused"})
    assert (run("jobs", "pause", "job_1").stdout, run("jobs", "pause", "job_1").stderr) == ("waiting (paused)\n", "")
    router.on("POST /v1/jobs/job_1/resume", JOB)
    assert run("jobs", "resume", "job_1").stdout == "queued\n"
    assert json.loads(run("jobs", "resume", "job_1", "--json").stdout)["status"] == "queued"


def test_a_message(run: Run, router: Router) -> None:
    router.on("POST /v1/jobs/job_1/messages", {"number": 3}, status=201)
    assert "message 3" in run("jobs", "message", "job_1", "Leave out 2024.").stderr
    assert router.body() == {"content": "Leave out 2024."}
    assert router.asked[-1].headers["idempotency-key"].startswith("cli-")
    run("jobs", "message", "job_1", "-", stdin="from\nstdin")
    assert router.body() == {"content": "from\nstdin"}
    assert run("jobs", "message", "job_1", "-", stdin=" ").exit_code == Exit.USAGE


def test_fork_and_retry(run: Run, router: Router) -> None:
    made = {**JOB, "id": "job_2", "forked_from": "job_1", "forked_step": 4}
    router.on("POST /v1/jobs/job_1/fork", made, status=201)
    router.on("POST /v1/jobs/job_1/retry", made, status=201)
    options = ("-m", "differently", "--model", "fast", "--max-steps", "9", "--check", "true", "--metadata", "a=b", "--idempotency-key", "k")
    forked = run("jobs", "fork", "job_1", "4", *options)
    assert (forked.exit_code, forked.stdout) == (0, "job_2\n")
    assert "from step 4" in forked.stderr
    changes = {"message": "differently", "agent": {"model": "fast"}, "limits": {"steps": 9}, "checks": ["true"], "metadata": {"a": "b"}}
    assert router.body() == {"step": 4} | changes
    assert router.asked[-1].headers["idempotency-key"] == "k"
    assert run("jobs", "retry", "job_1").stdout == "job_2\n"
    assert router.body() == {}
    router.on("GET /v1/jobs/job_2", {**made, "status": "succeeded"})
    router.on("GET /v1/jobs/job_2/events", lambda _: sse(job_event(1, "job.queued"), job_event(2, "job.succeeded", answer="yes")))
    router.on("GET /v1/jobs/job_2/artifacts", {"data": [], "has_more": False})
    watched = run("jobs", "retry", "job_1", *options[:8], "--watch")
    assert (watched.exit_code, watched.stdout) == (0, "yes\n")
    assert "from step 4 of job_1" in watched.stderr
    assert run("jobs", "fork", "job_1", "-1").exit_code == Exit.USAGE
