"""LangGraph in process: a graph of two nodes in a circle, AsyncPostgresSaver, every checkpoint written before the next node runs."""

import argparse
import asyncio
import json
import os
import sys
import time
import uuid
from typing import Any, TypedDict

from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.peers import _rows
from benchmarks.peers._protocol import summary


class State(TypedDict):
    job: str
    step: int
    steps: int
    decision: str
    observation: str


async def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    url = os.environ["BENCH_DATABASE"]
    times: dict[str, list[float]] = {}

    async def decide(state: State) -> dict[str, Any]:
        times.setdefault(state["job"], []).append(time.perf_counter())
        return {"decision": _rows.DECISION, "step": state["step"] + 1}

    async def observe(_: State) -> dict[str, Any]:
        return {"observation": _rows.OBSERVATION}

    def onward(state: State) -> str:
        return "decide" if state["step"] < state["steps"] else END

    graph = StateGraph(State)
    graph.add_node("decide", decide)
    graph.add_node("observe", observe)
    graph.add_edge(START, "decide")
    graph.add_edge("decide", "observe")
    graph.add_conditional_edges("observe", onward, ["decide", END])
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}  # what its documentation asks for
    async with AsyncConnectionPool(url, min_size=4, max_size=32, kwargs=options) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        compiled = graph.compile(checkpointer=saver)

        async def work(job: str, steps: int) -> None:
            config = {"configurable": {"thread_id": job}, "recursion_limit": 2 * steps + 10}
            state = {"job": job, "step": 0, "steps": steps, "decision": "", "observation": ""}
            await compiled.ainvoke(state, config, durability="sync")

        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            jobs, steps = map(int, line.split())
            times.clear()
            started = time.perf_counter()
            await asyncio.gather(*[work(f"job-{uuid.uuid4()}", steps) for _ in range(jobs)])
            print(json.dumps(summary(times.values(), jobs, steps, time.perf_counter() - started)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
