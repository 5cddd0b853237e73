"""The worker against one broker, and against a cluster whose leader is killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

from punctual import AsyncClient, Client, Fire, NewTask, Queue, Worker

from .cluster import Cluster
from .conftest import WAIT_SECONDS_MAX, wait_until

TASKS = 600


def test_not_more_functions_run_at_once_than_concurrency(client: Client) -> None:
    worker = Worker(client, concurrency=3)
    running, most, done = set(), [0], []

    @worker.on("work")
    async def slow(fire: Fire[Any]) -> None:
        running.add(fire.key)
        most[0] = max(most[0], len(running))
        await asyncio.sleep(0.02)
        running.remove(fire.key)
        done.append(fire.key)

    client.schedule_many(NewTask(f"t-{n}", after="0s", to=Queue("work")) for n in range(20))
    with worker:
        wait_until(lambda: len(done) == 20)
    assert Counter(done) == Counter(f"t-{n}" for n in range(20))
    assert most[0] == 3


def test_the_longest_prefix_wins_and_other_keys_go_to_the_function_without_one(client: Client) -> None:
    worker = Worker(client)
    seen: dict[str, str] = {}
    for prefix in ("unit:", "unit:lamp:", ""):

        @worker.on("work", prefix=prefix)
        def note(fire: Fire[Any], prefix: str = prefix) -> None:
            seen[fire.key or ""] = prefix

    for key in ("unit:1", "unit:lamp:7", "order-1"):
        client.schedule(key, after="0s", to=Queue("work"))
    with worker:
        wait_until(lambda: len(seen) == 3)
    assert seen == {"unit:1": "unit:", "unit:lamp:7": "unit:lamp:", "order-1": ""}


def test_a_lease_is_extended_while_the_function_runs(client: Client) -> None:
    worker = Worker(client, lease="1s")
    calls = []
    done = threading.Event()

    @worker.on("work")
    async def longer_than_the_lease(fire: Fire[Any]) -> None:
        calls.append(fire.attempt)
        await asyncio.sleep(2.5)
        done.set()

    client.schedule("slow", after="0s", to=Queue("work"))
    with worker:
        assert done.wait(WAIT_SECONDS_MAX)
    assert calls == [1]
    wait_until(lambda: [fire.end for fire in client.history("slow")] == ["done"])
    assert [attempt.outcome for attempt in client.history("slow")[0].attempts] == ["acked"]


def test_stop_finishes_what_runs_also_when_a_function_calls_it(client: Client) -> None:
    worker = Worker(client)
    finished = []

    @worker.on("work")
    def stops(fire: Fire[Any]) -> None:
        worker.stop()
        time.sleep(0.1)
        finished.append(fire.key)

    client.schedule("last", after="0s", to=Queue("work"))
    worker.start()
    wait_until(lambda: not worker.running)
    assert finished == ["last"]
    wait_until(lambda: [fire.end for fire in client.history("last")] == ["done"])


def test_a_fire_that_is_delivered_again_is_acked_without_a_second_call(client: Client) -> None:
    """The first delivery is taken away from the worker: its lease ends unnoticed while the function runs."""
    calls: list[str] = []
    worker = Worker(client, lease="30s")

    @worker.on("work")
    async def note(fire: Fire[Any]) -> None:
        calls.append(fire.fire_id)
        if len(calls) == 1:
            # Settled behind the back of the worker: the ack is stale, and the retry comes to the same worker.
            await asyncio.to_thread(client.fail, "work", fire.token, "taken away", retry_in="0s")

    client.schedule("twice", after="0s", to=Queue("work"))
    with worker:
        wait_until(lambda: [fire.end for fire in client.history("twice")] == ["done"])
    fire = client.history("twice")[0]
    assert calls == [fire.fire_id]
    assert [attempt.outcome for attempt in fire.attempts] == ["failed", "acked"]


def test_an_async_program_runs_a_worker_beside_itself(client: Client) -> None:
    async def run() -> list[str | None]:
        async with AsyncClient(settings=client.settings) as own:
            worker, seen, done = Worker(own), [], asyncio.Event()

            @worker.on("work")
            async def note(fire: Fire[Any]) -> None:
                seen.append(fire.key)
                done.set()

            async with worker:
                await own.schedule("a", after="0s", to=Queue("work"))
                await asyncio.wait_for(done.wait(), WAIT_SECONDS_MAX)
            return seen

    assert asyncio.run(run()) == ["a"]


def test_no_task_is_lost_when_the_leader_is_killed(cluster: Cluster) -> None:
    fires: dict[str, Counter[str]] = {}
    lock = threading.Lock()
    first, second = (Client(cluster.urls, namespace="shop") for _ in range(2))
    workers = [Worker(one, concurrency=20, name=f"w{n}", lease="3s") for n, one in enumerate((first, second))]
    for worker in workers:

        @worker.on("work")
        def note(fire: Fire[Any]) -> None:
            with lock:
                fires.setdefault(fire.key or "", Counter())[fire.fire_id] += 1

    keys = {f"t-{n}" for n in range(TASKS)}
    with first, second, workers[0], workers[1]:
        half = sorted(keys)[: TASKS // 2]
        for result in first.schedule_many(NewTask(key, after="0s", to=Queue("work")) for key in half):
            assert "id" in result.json, result
        for result in first.schedule_many(NewTask(key, after="2s", to=Queue("work")) for key in keys - set(half)):
            assert "id" in result.json, result
        wait_until(lambda: len(fires) > 20)
        cluster.leader().kill()
        assert len(fires) < TASKS, "the leader was killed after the last fire"
        wait_until(lambda: set(fires) == keys)
        assert {one.name for one in first.workers()} == {"w0", "w1"}
    # A delivery may be repeated; a second fire of a task that fires once may not be.
    assert {key: len(ids) for key, ids in fires.items() if len(ids) != 1} == {}
