"""What a caller sends: targets, retry policies and tasks. Pure: each class knows its JSON and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from ._payload import plain
from ._units import Duration, Instant, duration_text, instant_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

Json = Any


@dataclass(frozen=True)
class Queue:
    """Deliveries wait in this queue until a worker takes them."""

    name: str

    def wire(self) -> Json:
        return {"queue": self.name}


@dataclass(frozen=True)
class Http:
    """Deliveries are requests to this URL. `docs/api.md`, "Success and refusal", has the rules for answers."""

    url: str
    method: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    success_statuses: Sequence[int] = ()
    success_json: Mapping[str, Json] = field(default_factory=dict)
    refuse_statuses: Sequence[int] = ()

    def wire(self) -> Json:
        http: dict[str, Json] = {"url": self.url}
        if self.method is not None:
            http["method"] = self.method
        if self.headers:
            http["headers"] = dict(self.headers)
        success: dict[str, Json] = {}
        if self.success_statuses:
            success["statuses"] = list(self.success_statuses)
        if self.success_json:
            success["json"] = dict(self.success_json)
        if success:
            http["success"] = success
        if self.refuse_statuses:
            http["refuse"] = {"statuses": list(self.refuse_statuses)}
        return {"http": http}


@dataclass(frozen=True)
class Sql:
    """Deliveries run a statement of a connection. Parameters that are not in `params` are taken from the payload."""

    connection: str
    statement: str
    params: Mapping[str, Json] = field(default_factory=dict)

    def wire(self) -> Json:
        sql: dict[str, Json] = {"connection": self.connection, "statement": self.statement}
        if self.params:
            sql["params"] = plain(dict(self.params))
        return {"sql": sql}


@dataclass(frozen=True)
class Kafka:
    """Deliveries are records of a topic. The key of a record is that of the task, if it is not given here."""

    connection: str
    topic: str
    key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> Json:
        kafka: dict[str, Json] = {"connection": self.connection, "topic": self.topic}
        if self.key is not None:
            kafka["key"] = self.key
        if self.headers:
            kafka["headers"] = dict(self.headers)
        return {"kafka": kafka}


@dataclass(frozen=True)
class Amqp:
    """Deliveries are messages to an exchange, like one of RabbitMQ. With an empty exchange, the routing key is the name
    of a queue."""

    connection: str
    exchange: str
    routing_key: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> Json:
        amqp: dict[str, Json] = {
            "connection": self.connection,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
        }
        if self.headers:
            amqp["headers"] = dict(self.headers)
        return {"amqp": amqp}


@dataclass(frozen=True)
class Nats:
    """Deliveries are messages to a subject of NATS JetStream."""

    connection: str
    subject: str

    def wire(self) -> Json:
        return {"nats": {"connection": self.connection, "subject": self.subject}}


@dataclass(frozen=True)
class Mqtt:
    """Deliveries are messages to a topic of MQTT, confirmed as `qos` 1 or 2 says."""

    connection: str
    topic: str
    qos: int = 1
    retain: bool = False

    def wire(self) -> Json:
        return {"mqtt": {"connection": self.connection, "topic": self.topic, "qos": self.qos, "retain": self.retain}}


@dataclass(frozen=True)
class RedisStream:
    """Deliveries are entries of a stream of Redis, which keeps about `maxlen` entries."""

    connection: str
    stream: str
    maxlen: int | None = None

    def wire(self) -> Json:
        stream: dict[str, Json] = {"connection": self.connection, "stream": self.stream}
        if self.maxlen is not None:
            stream["maxlen"] = self.maxlen
        return {"redis_stream": stream}


@dataclass(frozen=True)
class Grpc:
    """Deliveries call a unary gRPC method, like `/shop.Orders/Cancel`. The payload is the message."""

    url: str
    method: str

    def wire(self) -> Json:
        return {"grpc": {"url": self.url, "method": self.method}}


Target: TypeAlias = Queue | Http | Sql | Kafka | Amqp | Nats | Mqtt | RedisStream | Grpc | str | Mapping[str, Json]
"""A queue, a webhook, a gRPC method, what of a connection takes deliveries, the URL of a webhook, or the JSON of a
target."""


def target_json(target: Target) -> Json:
    if isinstance(target, str):
        return Http(target).wire()
    return dict(target) if isinstance(target, Mapping) else target.wire()


@dataclass(frozen=True)
class Fixed:
    """The same pause before each further attempt."""

    pause: Duration

    def wire(self) -> Json:
        return {"fixed": duration_text(self.pause)}


@dataclass(frozen=True)
class Exponential:
    """Pauses that grow by `factor`, from `first` to `longest`."""

    first: Duration
    factor: float | None = None
    longest: Duration | None = None

    def wire(self) -> Json:
        json: dict[str, Json] = {"first": duration_text(self.first)}
        if self.factor is not None:
            json["factor"] = self.factor
        if self.longest is not None:
            json["max"] = duration_text(self.longest)
        return {"exponential": json}


@dataclass(frozen=True)
class Pauses:
    """One pause per further attempt; the last one is used again."""

    pauses: Sequence[Duration]

    def wire(self) -> Json:
        return {"list": [duration_text(pause) for pause in self.pauses]}


@dataclass(frozen=True)
class RetryPolicy:
    """How often a fire is attempted, and the pauses between attempts."""

    attempts_max: int | None = None
    backoff: Fixed | Exponential | Pauses | None = None
    jitter: float | None = None

    def wire(self) -> Json:
        json: dict[str, Json] = {}
        if self.attempts_max is not None:
            json["attempts_max"] = self.attempts_max
        if self.backoff is not None:
            json["backoff"] = self.backoff.wire()
        if self.jitter is not None:
            json["jitter"] = self.jitter
        return json


class TaskFields(TypedDict, total=False):
    """The fields of a task. Exactly one of `after`, `at`, `cron`, `every` and `within` says when it fires."""

    after: Duration
    at: Instant
    cron: str
    timezone: str
    dst: Mapping[str, Json]
    every: Duration
    starts_at: Instant
    ends_at: Instant
    count: int
    misfire: Literal["fire_once", "fire_all", "skip"] | str
    overlap: Literal["allow", "skip", "queue_one"] | str
    jitter: Duration
    within: Duration
    postpone_max: Duration
    on_return: bool
    to: Target
    payload: Json
    payload_base64: str
    content_type: str
    guarantee: Literal["at_least_once", "at_most_once", "exactly_once"] | str
    retry: RetryPolicy | Mapping[str, Json]
    timeout: Duration
    expires_after: Duration
    labels: Mapping[str, str]
    paused: bool
    on_done: Target
    on_dead: Target


def _retry_json(retry: RetryPolicy | Mapping[str, Json]) -> Json:
    return retry.wire() if isinstance(retry, RetryPolicy) else dict(retry)


# Arguments whose name or form in the JSON is another one; all others are sent as they are.
_RENAMED = {"after": "in", "to": "target"}
_CONVERTED: dict[str, Callable[[Any], Json]] = {
    **dict.fromkeys(
        ("after", "every", "jitter", "within", "postpone_max", "timeout", "expires_after"),
        duration_text,
    ),
    **dict.fromkeys(("at", "starts_at", "ends_at"), instant_json),
    **dict.fromkeys(("to", "on_done", "on_dead"), target_json),
    "retry": _retry_json,
}
_FIELDS = {name: (_RENAMED.get(name, name), _CONVERTED.get(name)) for name in TaskFields.__annotations__}
TASK_ARGUMENTS = {_RENAMED.get(name, name): name for name in TaskFields.__annotations__}
"""Fields of a task in the JSON, and the arguments that set them."""


class NewTask:
    """A task to create: the fields of `schedule`, for `schedule_many` and for reuse."""

    __slots__ = ("json",)

    def __init__(self, key: str | None = None, **fields: Unpack[TaskFields]) -> None:
        json: dict[str, Json] = {} if key is None else {"key": key}
        for name, value in fields.items():
            known = _FIELDS.get(name)
            if known is None:
                raise TypeError(f"a task has no field {name!r}")
            if name == "payload":
                if isinstance(value, bytes | bytearray):
                    json["payload_base64"] = base64.b64encode(value).decode()
                else:
                    json["payload"] = plain(value)
            elif value is not None:
                wire_name, convert = known
                json[wire_name] = convert(value) if convert else value
        self.json = json

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.json!r})"


class Watch(NewTask):
    """A task that fires when its key was not touched for `within`."""

    __slots__ = ()

    def __init__(self, key: str | None = None, **fields: Unpack[TaskFields]) -> None:
        if "within" not in fields:
            raise TypeError("a watch needs `within`")
        super().__init__(key, **fields)


TaskLike: TypeAlias = NewTask | Mapping[str, Json]
"""A `NewTask`, or the JSON of a task."""


def task_json(task: TaskLike | None, fields: TaskFields) -> dict[str, Json]:
    """The JSON of a task, from a whole one, from arguments, or from both: arguments win."""
    json = {} if task is None else dict(task.json if isinstance(task, NewTask) else task)
    if fields:
        json.update(NewTask(**fields).json)
    return json
