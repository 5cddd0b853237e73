"""Measures the Python SDK against a broker of its own: batches of tasks scheduled, and deliveries acknowledged.

    PUNCTUAL_BIN=/path/to/punctual python bench.py [--tasks 100000] [--batch 5000]

Prints rates per second of wall time. Broker and client share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from typing import Any

from punctual import AsyncClient, Client, Fire, NewTask, Queue, Worker
from punctual.testing import BrokerProcess

WAIT_SECONDS_MAX = 300.0


async def schedule(url: str, tasks: int, batch: int, in_flight: int) -> float:
    """Schedules tasks that are due much later; `in_flight` batches are on their way at once."""
    async with AsyncClient(url, namespace="schedule") as client:
        starts = iter(range(0, tasks, batch))

        async def sender() -> None:
            for start in starts:
                new = [
                    NewTask(f"t-{n}", after="1h", to=Queue("later"), payload={"order": n})
                    for n in range(start, min(start + batch, tasks))
                ]
                results = await client.schedule_many(new)
                if any("id" not in one for one in results.json["results"]):
                    raise RuntimeError("the broker refused a task")

        began = time.monotonic()
        await asyncio.gather(*(sender() for _ in range(in_flight)))
        return tasks / (time.monotonic() - began)


def work(url: str, tasks: int, batch: int, concurrency: int) -> float:
    """Acknowledges deliveries that wait in a queue, with a function that only counts."""
    with Client(url, namespace="work") as client:
        for start in range(0, tasks, batch):
            count = min(batch, tasks - start)
            client.schedule_many({"in": "0s", "target": {"queue": "work"}, "payload": n} for n in range(count))
        called: list[None] = []
        worker = Worker(client, concurrency=concurrency)

        @worker.on("work")
        async def nothing(fire: Fire[Any]) -> None:
            called.append(None)

        began = time.monotonic()
        with worker:
            # The broker counts what is settled: the clock stops when it has every ack.
            while client.stats().done < tasks:
                if time.monotonic() - began > WAIT_SECONDS_MAX:
                    raise RuntimeError("the worker did not finish")
                time.sleep(0.05)
            rate = tasks / (time.monotonic() - began)
        if len(called) != tasks:
            raise RuntimeError(f"{len(called)} calls for {tasks} tasks")
        return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=5_000)
    parser.add_argument("--in-flight", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=1_000)
    options = parser.parse_args()
    serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", "data", "--log-format", "json"]
    broker = BrokerProcess(serve)
    try:
        scheduled = asyncio.run(schedule(broker.url, options.tasks, options.batch, options.in_flight))
        acked = work(broker.url, options.tasks, options.batch, options.concurrency)
    finally:
        broker.stop()
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"scheduled_per_s": int(scheduled), "acked_per_s": int(acked), "load": load}))


if __name__ == "__main__":
    main()
