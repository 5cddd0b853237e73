"""The clients and the worker against a real broker (`PUNCTUAL_BIN`)."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from punctual import (
    Amqp,
    AsyncClient,
    Cancelled,
    Client,
    ExistsError,
    Fire,
    Grpc,
    InvalidError,
    Kafka,
    Mqtt,
    Nats,
    NewTask,
    NotFound,
    NotFoundError,
    Problem,
    Queue,
    RedisStream,
    Refuse,
    Retry,
    Sql,
    Task,
    TouchBuffer,
    Watch,
    Worker,
)
from punctual.records import Touched
from punctual.testing import BrokerProcess

from .cluster import SERVE
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


CONNECTIONS = """
[connections.shop-db]
kind = "postgres"
url = "postgres://punctual@127.0.0.1:{port}/shop"
namespaces = ["shop"]
statements.order-paid = "update orders set state = 'paid' where id = :order and note = :note"

[[sources]]
kind = "outbox"
connection = "shop-db"
table = "punctual_outbox"
namespace = "shop"
"""


def test_a_task_names_a_statement_and_operators_see_the_connection(tmp_path: Path) -> None:
    with socket.socket() as closed:  # bound, but nothing listens: tasks are accepted, and wait for the connection
        closed.bind(("127.0.0.1", 0))
        config = tmp_path / "punctual.toml"
        config.write_text(CONNECTIONS.format(port=closed.getsockname()[1]))
        broker = BrokerProcess([*SERVE, "--data-dir", "data", "--config", str(config)])
        try:
            with Client(broker.url, namespace="shop") as client:
                _name_a_statement(client)
                _see_the_connection(client)
        finally:
            broker.stop()


def _name_a_statement(client: Client) -> None:
    paid = Sql("shop-db", "order-paid", params={"order": 42, "note": Order(42)})
    task = client.schedule("order-42", after="15m", to=paid)
    params = {"order": 42, "note": {"order": 42}}
    assert task.target == {"sql": {"connection": "shop-db", "statement": "order-paid", "params": params}}
    task = client.schedule("order-43", after="15m", to=Sql("shop-db", "order-paid"))
    assert task.target == {"sql": {"connection": "shop-db", "statement": "order-paid"}}
    with pytest.raises(InvalidError) as invalid:
        client.schedule("order-44", after="15m", to=Sql("shop-db", "order-lost"))
    assert invalid.value.field == "target.sql.statement"


def test_each_kind_of_target_is_sent_under_its_name(client: Client) -> None:
    method = Grpc("http://127.0.0.1:9", "/shop.Orders/Cancel")
    assert client.schedule("order-1", after="15m", to=method).target == method.wire()
    for to, field in (
        (Kafka("events", "orders", key="a", headers={"x-a": "b"}), "target.kafka.connection"),
        (Amqp("rabbit", "orders", routing_key="paid", headers={"x-a": "b"}), "target.amqp.connection"),
        (Nats("bus", "orders.paid"), "target.nats.connection"),
        (Mqtt("hall", "lamps/7", qos=2, retain=True), "target.mqtt.connection"),
        (RedisStream("cache", "orders", maxlen=1000), "target.redis_stream.connection"),
    ):
        with pytest.raises(InvalidError) as invalid:  # the configuration has no connection
            client.schedule("order-2", after="15m", to=to)
        assert invalid.value.field == field


def _see_the_connection(client: Client) -> None:
    found = client.connections()
    (connection,), (source,) = found.connections, found.sources
    assert (connection.name, connection.kind, connection.state) == ("shop-db", "postgres", "away")
    assert (connection.namespaces, connection.statements) == (["shop"], ["order-paid"])
    assert isinstance(connection.since, datetime)
    assert (source.namespace, source.read_at, source.applied) == ("shop", None, 0)
    tested = client.test_connection("shop-db")
    assert (tested.name, tested.works) == ("shop-db", False) and tested.problem
    with pytest.raises(NotFoundError) as missing:
        client.test_connection("other-db")
    assert missing.value.type == "urn:punctual:connection-not-found"
