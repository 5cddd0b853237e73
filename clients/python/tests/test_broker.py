"""The clients and the worker against a real broker (`PUNCTUAL_BIN`)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from punctual import (
    AsyncClient,
    Cancelled,
    Client,
    ExistsError,
    Fire,
    InvalidError,
    NewTask,
    NotFound,
    Problem,
    Queue,
    Refuse,
    Retry,
    Task,
    TouchBuffer,
    Watch,
    Worker,
)
from punctual.records import Touched
from punctual.testing import BrokerProcess

from .conftest import WAIT_SECONDS_MAX


def test_a_task_is_scheduled_shown_and_cancelled(client: Client) -> None:
    task = client.schedule("order-1", after=timedelta(minutes=15), to=Queue("unpaid"), payload={"order": 1})
    assert (task.key, task.after, task.payload) == ("order-1", timedelta(minutes=15), {"order": 1})
    assert client.get("order-1").id == task.id
    with pytest.raises(ExistsError) as exists:
        client.schedule("order-1", after="1h", to=Queue("unpaid"), if_none_match=True)
    assert exists.value.existing is not None and exists.value.existing.id == task.id
    assert isinstance(client.cancel("order-1"), Cancelled)
    assert isinstance(client.cancel("never-was"), NotFound)
    with pytest.raises(InvalidError) as invalid:
        client.schedule("order-2", after="soon", to=Queue("unpaid"))
    assert invalid.value.field == "in"


def test_a_batch_has_one_result_each_and_lists_read_all_pages(client: Client) -> None:
    tasks = [NewTask(f"t-{n}", after="1h", to=Queue("q")) for n in range(25)]
    results = client.schedule_many([*tasks, NewTask("bad", after="soon", to=Queue("q"))])
    assert [type(one) for one in results] == [Task] * 25 + [Problem]
    assert {task.key for task in client.list(limit=10)} == {f"t-{n}" for n in range(25)}


def test_the_async_client_has_the_same_methods(broker: BrokerProcess) -> None:
    async def run() -> None:
        async with AsyncClient(broker.url, namespace="async") as client:
            await client.schedule("a", after="1h", to=Queue("q"))
            assert [task.key async for task in client.list()] == ["a"]
            assert isinstance(await client.cancel("a"), Cancelled)

    asyncio.run(run())


@dataclass
class Order:
    order: int


def test_a_worker_settles_with_results_retries_and_refusals(client: Client) -> None:
    worker = Worker(client, concurrency=4, name="test-worker")
    seen: list[Any] = []
    done = threading.Event()

    @worker.on("work", prefix="ok:")
    async def ok(fire: Fire[Order]) -> dict[str, int]:
        seen.append(fire.payload)
        return {"refund": fire.payload.order}

    @worker.on("work", prefix="retry:")
    def retry(fire: Fire[Any]) -> None:
        if fire.attempt == 1:
            raise Retry(after="0s")
        done.set()

    @worker.on("work")
    def refuse(fire: Fire[Any]) -> None:
        raise Refuse("not ours")

    with worker:
        for key in ("ok:1", "retry:1", "other"):
            client.schedule(key, after="0s", to=Queue("work"), payload={"order": 7})
        assert done.wait(WAIT_SECONDS_MAX)
        assert "test-worker" in {one.name for one in client.workers()}
    assert seen == [Order(7)]
    assert [fire.result for fire in client.history("ok:1")] == [{"refund": 7}]
    assert [fire.end for fire in client.history("retry:1")] == ["done"]
    assert [letter.reason for letter in client.dead()] == ["refused"]


def test_a_touch_buffer_sends_each_key_once_and_flushes_when_it_is_closed(client: Client) -> None:
    watch = Watch(within="48h", to=Queue("silent"))
    answers: list[Touched] = []
    with TouchBuffer(client, create=watch, every="10m", on_flush=answers.append) as buffer:
        for _ in range(3):
            buffer.touch("lamp-7")
    assert [(one.created, one.touched) for one in answers] == [(1, 0)]
