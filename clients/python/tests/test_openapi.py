"""The package compared with the OpenAPI document of the broker: no route, parameter or field is missing."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from punctual import (
    Amqp,
    AsyncClient,
    Client,
    Grpc,
    Kafka,
    Mqtt,
    Nats,
    Queue,
    RedisStream,
    alarms,
    errors,
    records,
)  # fmt: skip
from punctual._record import Record
from punctual.calls import DEV_ROUTES, REQUESTS, ROUTES
from punctual.targets import TASK_ARGUMENTS, Dst, Exponential, Fixed, Http, Pauses, RetryPolicy, Sql
from punctual.testing import DevBroker

# Routes that the document may lack: the clock is of `punctual dev` only, and older brokers have no touch rules.
UNDOCUMENTED = {(r.method, r.path) for r in (*DEV_ROUTES, *ROUTES) if r in DEV_ROUTES or "/rules" in r.path}
RULE_SCHEMAS = {"TouchRule", "TouchRules"}

# Lists and wrappers whose elements are read by methods: what they are called does not reach the caller.
WRAPPERS = {
    "Acked": {"results"},
    "Alarms": {"alarms"},
    "CancelManyAnswer": {"results"},
    "DeadLetters": {"dead", "next"},
    "Deliveries": {"deliveries"},
    "FirePage": {"fires", "next"},
    "Fires": {"fires"},
    "Namespaces": {"namespaces", "next"},
    "OneOperation": {"operation"},
    "Operations": {"operations"},
    "Queues": {"queues"},
    "Results": {"results"},
    "Tasks": {"tasks", "next"},
    "TouchRules": {"rules"},
    "Workers": {"workers"},
}


def _typed_dicts() -> dict[str, set[str]]:
    """The objects that callers give as JSON, with a type for it."""
    named = {name: one for name, one in vars(alarms).items() if typing.is_typeddict(one)}
    return {name: set(typing.get_type_hints(one)) for name, one in [*named.items(), ("Dst", Dst)] if name[0] != "_"}



def _wire_fields(value: Any, inner: str) -> set[str]:
    return set(value.wire()[inner])


TARGETS = (
    Queue("q"), Http("u"), Sql("c", "s"), Kafka("c", "t"), Amqp("c", "e"), Nats("c", "s"), Mqtt("c", "t"),
    RedisStream("c", "s"), Grpc("u", "m"),
)  # fmt: skip

SENT: dict[str, set[str]] = {
    **REQUESTS,
    **{key: {"key", *TASK_ARGUMENTS} for key in ("NewTask", "NewTaskWithoutKey", "NewTasks")},
    "Target": {name for one in TARGETS for name in one.wire()},
    "HttpTarget": _wire_fields(
        Http("u", "PUT", {"a": "b"}, success_statuses=[200], success_json={"/a": 0}, refuse_statuses=[400]), "http"
    ),
    "SqlTarget": _wire_fields(Sql("c", "s", {"a": 0}), "sql"),
    "KafkaTarget": _wire_fields(Kafka("c", "t", "k", {"a": "b"}), "kafka"),
    "AmqpTarget": _wire_fields(Amqp("c", "e", "k", {"a": "b"}), "amqp"),
    "NatsTarget": _wire_fields(Nats("c", "s"), "nats"),
    "MqttTarget": _wire_fields(Mqtt("c", "t", 2, True), "mqtt"),
    "RedisStreamTarget": _wire_fields(RedisStream("c", "s", 9), "redis_stream"),
    "GrpcTarget": _wire_fields(Grpc("u", "m"), "grpc"),
    "SuccessRule": set(Http("u", success_statuses=[200], success_json={"/a": 0}).wire()["http"]["success"]),
    "RefuseRule": set(Http("u", refuse_statuses=[400]).wire()["http"]["refuse"]),
    "RetryPolicy": set(RetryPolicy(1, Fixed("1s"), 0.5).wire()),
    "Backoff": {name for one in (Fixed("1s"), Exponential("1s"), Pauses(["1s"])) for name in one.wire()},
    "ExponentialBackoff": _wire_fields(Exponential("1s", 2, "1m"), "exponential"),
}


def _records() -> Iterator[type[Record]]:
    for module in (records, errors):
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, Record) and one is not Record:
                yield one


def _answered() -> dict[str, set[str]]:
    fields: dict[str, set[str]] = {}
    for record in _records():
        for schema in record.schema:
            fields.setdefault(schema, set()).update(record.fields())
    return fields


def _properties(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> set[str]:
    found = set(schema.get("properties", {}))
    for part in ("allOf", "oneOf", "anyOf"):
        for one in schema.get(part, []):
            name = one.get("$ref", "").rpartition("/")[2]
            found |= _properties(schemas[name] if name else one, schemas)
    return found


@pytest.fixture
def document(punctual: DevBroker) -> Mapping[str, Any]:
    return punctual.client.openapi()


def test_every_route_and_parameter_has_a_method(document: Mapping[str, Any]) -> None:
    served = {
        (method.upper(), path): {p["name"] for p in call.get("parameters", []) if p["in"] in ("query", "header")}
        for path, calls in document["paths"].items()
        for method, call in calls.items()
        if method != "parameters"
    }
    known = {(route.method, route.path): {*route.query, *route.headers} for route in (*ROUTES, *DEV_ROUTES)}
    assert {route: known.get(route) for route in served} == served
    assert set(known) - set(served) <= UNDOCUMENTED
    for route in (*ROUTES, *DEV_ROUTES):
        assert callable(getattr(Client, route.by)) and callable(getattr(AsyncClient, route.by))


def test_both_clients_have_the_same_methods() -> None:
    assert {name for name in dir(Client) if not name.startswith("_")} == {
        name for name in dir(AsyncClient) if not name.startswith("_")
    }


def test_every_field_of_a_schema_is_shown_or_can_be_sent(document: Mapping[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    covered = {**WRAPPERS, **SENT, **_typed_dicts()}
    for name, fields in _answered().items():
        covered[name] = covered.get(name, set()) | fields
    missing = {}
    for name, schema in schemas.items():
        properties = _properties(schema, schemas)
        if name.startswith("TaskOr"):  # one of several schemas that are compared themselves
            continue
        if properties - covered.get(name, set()):
            missing[name] = properties - covered.get(name, set())
    assert missing == {}


def test_nothing_is_compared_with_a_schema_that_does_not_exist(document: Mapping[str, Any]) -> None:
    named = {*_answered(), *SENT, *WRAPPERS, *_typed_dicts()}
    assert named - set(document["components"]["schemas"]) <= RULE_SCHEMAS
