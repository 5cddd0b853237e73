"""What the broker answers: one class per schema of its OpenAPI document."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, overload

from ._record import (
    Record,
    anything,
    boolean,
    converted,
    converted_or_none,
    duration,
    duration_or_none,
    instant,
    instant_or_none,
    integer,
    integer_or_none,
    number,
    text,
    text_or_none,
    texts,
    values,
)
from .errors import Problem

P = TypeVar("P")
R = TypeVar("R")
Schemas: TypeAlias = tuple[str, ...]


class RedrivenFire(Record):
    schema: ClassVar[Schemas] = ("RedrivenFire",)
    fire_id = text("fire_id")
    at = instant("at")


class TaskRef(Record):
    """A task of which only id, time and version were asked for (`minimal=True`)."""

    schema: ClassVar[Schemas] = ("ScheduledTask", "TouchedTask")
    id = text_or_none("id")
    fire_at = instant("fire_at")
    version = integer("version")


class Task(Record):
    """A task. One that has ended has `end`, `ended_at` and `fired_at`, and little else."""

    schema: ClassVar[Schemas] = ("Task", "TaskFields", "EndedTask")
    id = text("id")
    namespace = text("namespace")
    key = text_or_none("key")
    state = text("state")
    fire_at = instant("fire_at")
    nominal_at = instant_or_none("nominal_at")
    version = integer_or_none("version")
    attempt = integer("attempt")
    created_at = instant_or_none("created_at")
    updated_at = instant_or_none("updated_at")
    after = duration_or_none("in")
    at = instant_or_none("at")
    cron = text_or_none("cron")
    timezone = text_or_none("timezone")
    dst = anything("dst")
    every = duration_or_none("every")
    starts_at = instant_or_none("starts_at")
    ends_at = instant_or_none("ends_at")
    count = integer_or_none("count")
    misfire = text_or_none("misfire")
    overlap = text_or_none("overlap")
    jitter = duration_or_none("jitter")
    within = duration_or_none("within")
    postpone_max = duration_or_none("postpone_max")
    on_return = boolean("on_return")
    target = anything("target")
    payload = anything("payload")
    payload_base64 = text_or_none("payload_base64")
    content_type = text_or_none("content_type")
    guarantee = text_or_none("guarantee")
    retry = anything("retry")
    timeout = duration_or_none("timeout")
    expires_after = duration_or_none("expires_after")
    labels = texts("labels")
    paused = boolean("paused")
    on_done = anything("on_done")
    on_dead = anything("on_dead")
    redriven = converted_or_none("redriven", RedrivenFire)
    callback_of = text_or_none("callback_of")
    end = text_or_none("end")
    fired_at = instant_or_none("fired_at")
    ended_at = instant_or_none("ended_at")


def task_or_problem(json: Mapping[str, Any]) -> Task | Problem:
    return Problem(json) if "id" not in json else Task(json)


class Results(Sequence[R], Generic[R]):
    """Results of a batch, in the order of the request. An element is converted when it is read."""

    def __init__(self, json: Mapping[str, Any], convert: Any) -> None:
        self.json = json
        self._results: list[Any] = json["results"]
        self._convert = convert

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> list[R]: ...
    def __getitem__(self, index: int | slice) -> R | list[R]:
        if isinstance(index, slice):
            return [self._convert(one) for one in self._results[index]]
        return self._convert(self._results[index])  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[R]:
        return map(self._convert, self._results)

    def __repr__(self) -> str:
        return f"Results({list(self)!r})"


class Cancelled(Record):
    """The task never fires."""

    schema: ClassVar[Schemas] = ("CancelAnswer", "CancelOutcome", "CancelResult")
    result = text("result")
    key = text_or_none("key")
    id = text_or_none("id")


class Firing(Record):
    """An attempt is in flight and cannot be called back."""

    __match_args__ = ("attempt",)
    schema: ClassVar[Schemas] = ("CancelAnswer", "CancelOutcome", "CancelResult")
    result = text("result")
    attempt = integer("attempt")
    key = text_or_none("key")
    id = text_or_none("id")


class AlreadyFired(Record):
    """The task had fired before."""

    __match_args__ = ("at",)
    schema: ClassVar[Schemas] = ("CancelAnswer", "CancelOutcome", "CancelResult")
    result = text("result")
    at = instant("fired_at")
    key = text_or_none("key")
    id = text_or_none("id")


class NotFound(Record):
    """There is no such task, or its history is past its retention."""

    schema: ClassVar[Schemas] = ("CancelAnswer", "CancelOutcome", "CancelResult")
    result = text("result")
    key = text_or_none("key")
    id = text_or_none("id")
    problem = converted_or_none("problem", Problem)


class CancelFailed(Record):
    """This task of a batch could not be cancelled; `problem` says why."""

    __match_args__ = ("problem",)
    schema: ClassVar[Schemas] = ("CancelResult",)
    problem = converted("problem", Problem)
    key = text_or_none("key")
    id = text_or_none("id")


CancelResult: TypeAlias = Cancelled | Firing | AlreadyFired | NotFound
_CANCELS: dict[str, type[Cancelled] | type[Firing] | type[AlreadyFired] | type[NotFound]] = {
    "cancelled": Cancelled,
    "firing": Firing,
    "already_fired": AlreadyFired,
    "not_found": NotFound,
}


def cancel_result(json: Mapping[str, Any]) -> CancelResult:
    return _CANCELS[json["result"]](json)


def cancel_many_result(json: Mapping[str, Any]) -> CancelResult | CancelFailed:
    return cancel_result(json) if "result" in json else CancelFailed(json)


class KeyProblem(Record):
    schema: ClassVar[Schemas] = ("KeyProblem",)
    key = text("key")
    problem = converted("problem", Problem)


class Touched(Record):
    """What a touch of many keys did."""

    schema: ClassVar[Schemas] = ("TouchManyAnswer",)
    touched = integer("touched")
    created = integer("created")
    missing = values("missing", str)
    problems = values("problems", KeyProblem)


class Rule(Record):
    """A touch rule: `create` is the watch that a touch of a new key with this prefix creates."""

    schema: ClassVar[Schemas] = ("TouchRule",)
    prefix = text("prefix")
    create = anything("create")


class Answer(Record):
    """What the receiver of a webhook responded: the first bytes of it."""

    schema: ClassVar[Schemas] = ("Answer",)
    content_type = text_or_none("content_type")
    text = text_or_none("text")
    base64 = text_or_none("base64")
    truncated = boolean("truncated")


class Attempt(Record):
    schema: ClassVar[Schemas] = ("Attempt",)
    attempt = integer("attempt")
    at = instant("at")
    duration_ms = integer("duration_ms")
    outcome = text("outcome")
    reason = text_or_none("reason")
    retry_in = duration_or_none("retry_in")
    status = integer_or_none("status")
    answer = converted_or_none("answer", Answer)


class SkippedFires(Record):
    schema: ClassVar[Schemas] = ("SkippedFires",)
    fires = integer("fires")
    until = instant("until")
    reason = text("reason")


class FireRecord(Record):
    """One fire in the history of a task."""

    schema: ClassVar[Schemas] = ("Fire",)
    fire_id = text("fire_id")
    task = text("task")
    key = text_or_none("key")
    occasion = text("occasion")
    fire_at = instant("fire_at")
    fired_at = instant_or_none("fired_at")
    ended_at = instant_or_none("ended_at")
    lag_ms = integer_or_none("lag_ms")
    end = text_or_none("end")
    reason = text_or_none("reason")
    result = anything("result")
    skipped = converted_or_none("skipped", SkippedFires)
    attempts = values("attempts", Attempt)


class DeadLetter(Record):
    schema: ClassVar[Schemas] = ("DeadLetter",)
    fire_id = text("fire_id")
    reason = text("reason")
    died_at = instant("died_at")
    attempts = values("attempts", Attempt)
    task = converted("task", Task)


class DeadGroup(Record):
    schema: ClassVar[Schemas] = ("DeadGroup",)
    reason = text("reason")
    target = text("target")
    count = integer("count")
    first_at = instant("first_at")
    last_at = instant("last_at")
    example = text_or_none("example")


class DeadGroups(Record):
    schema: ClassVar[Schemas] = ("DeadGroups",)
    groups = values("groups", DeadGroup)
    more = integer("more")


class LetterProblem(Record):
    schema: ClassVar[Schemas] = ("LetterProblem",)
    id = text("id")
    problem = converted("problem", Problem)


class Redriven(Record):
    schema: ClassVar[Schemas] = ("Redriven",)
    redriven = integer("redriven")
    problems = values("problems", LetterProblem)
    more = boolean("more")


class DeletedLetters(Record):
    schema: ClassVar[Schemas] = ("DeletedLetters",)
    deleted = integer("deleted")
    problems = values("problems", LetterProblem)
    more = boolean("more")


class Deleted(Record):
    schema: ClassVar[Schemas] = ("Deleted",)
    result = text("result")


class Stats(Record):
    """Counts of a namespace by state."""

    schema: ClassVar[Schemas] = ("Stats",)
    namespace = text("namespace")
    accepted = integer("accepted")
    scheduled = integer("scheduled")
    firing = integer("firing")
    paused = integer("paused")
    done = integer("done")
    dead = integer("dead")
    cancelled = integer("cancelled")
    dead_letters = integer("dead_letters")
    queued = integer("queued")
    parked_lanes = integer("parked_lanes")
    oldest_overdue = instant_or_none("oldest_overdue")
    oldest_overdue_ms = integer("oldest_overdue_ms")


class Step(Record):
    schema: ClassVar[Schemas] = ("Step",)
    start = instant("from")
    fires = integer("fires")


class TargetFires(Record):
    """The expected fires of one target, by step."""

    schema: ClassVar[Schemas] = ("TargetFires",)
    target = text("target")
    fires = values("fires", int)


class Forecast(Record):
    schema: ClassVar[Schemas] = ("Forecast",)
    start = instant("from")
    step = duration("step")
    complete = boolean("complete")
    complete_until = instant_or_none("complete_until")
    steps = values("steps", Step)
    targets = values("targets", TargetFires)


class Upcoming(Record):
    schema: ClassVar[Schemas] = ("Upcoming",)
    fire_at = instant("fire_at")
    local = text("local")
    note = text_or_none("note")


class Preview(Record):
    schema: ClassVar[Schemas] = ("Preview",)
    cron = text("cron")
    timezone = text("timezone")
    timezone_data = text("timezone_data")
    fires = values("fires", Upcoming)


class NextFire(Record):
    schema: ClassVar[Schemas] = ("NextFire",)
    fire_at = instant("fire_at")
    local = text("local")
    why = text_or_none("why")


class Explanation(Record):
    """What a task waits for, or how it ended."""

    schema: ClassVar[Schemas] = ("Explanation",)
    summary = text("summary")
    waiting_for = text("waiting_for")
    details = values("details", str)
    task = converted("task", Task)
    partition = integer("partition")
    owner = text_or_none("owner")
    epoch = integer_or_none("epoch")
    touches = integer_or_none("touches")
    touched_at = instant_or_none("touched_at")
    next = values("next", NextFire)
    fires = values("fires", FireRecord)


class QueueInfo(Record):
    schema: ClassVar[Schemas] = ("QueueInfo",)
    name = text("name")
    waiting = integer("waiting")
    more = boolean("more")
    in_flight = integer("in_flight")
    workers = integer("workers")
    oldest_overdue_ms = integer_or_none("oldest_overdue_ms")


class WorkerInfo(Record):
    schema: ClassVar[Schemas] = ("WorkerInfo",)
    name = text_or_none("name")
    address = text_or_none("address")
    broker = text("broker")
    queues = values("queues", str)
    in_flight = integer("in_flight")
    credit = integer("credit")
    since = instant("since")


class LaneFailure(Record):
    """The last failed attempt of a lane. `retry_at`: the receiver asked for a pause."""

    schema: ClassVar[Schemas] = ("LaneFailure",)
    at = instant("at")
    reason = text("reason")
    retry_at = instant_or_none("retry_at")


class LaneInfo(Record):
    """What waits for a target, what is in flight to it, and how many attempts failed in the last 15 minutes."""

    schema: ClassVar[Schemas] = ("LaneInfo",)
    kind = text("kind")
    target = text("target")
    connection = text_or_none("connection")
    state = text("state")
    since = instant_or_none("since")
    waiting = integer("waiting")
    more = boolean("more")
    in_flight = integer("in_flight")
    capacity = integer("capacity")
    oldest_overdue_ms = integer("oldest_overdue_ms")
    failed = integer("failed")
    last_failure = converted_or_none("last_failure", LaneFailure)


class Lanes(Record):
    """The lanes of a namespace. Not `complete`: there are more, with fewer waiting tasks."""

    schema: ClassVar[Schemas] = ("Lanes",)
    lanes = values("lanes", LaneInfo)
    complete = boolean("complete")


class CountedNamespace(Record):
    schema: ClassVar[Schemas] = ("CountedNamespace",)
    name = text("name")
    accepted = integer("accepted")
    scheduled = integer("scheduled")
    paused = integer("paused")
    done = integer("done")
    dead = integer("dead")
    cancelled = integer("cancelled")
    dead_letters = integer("dead_letters")


class Broker(Record):
    schema: ClassVar[Schemas] = ("Broker",)
    address = text("address")
    partitions = values("partitions", int)
    last_heartbeat = instant("last_heartbeat")
    clock_ahead_ms = integer_or_none("clock_ahead_ms")


class Topology(Record):
    schema: ClassVar[Schemas] = ("Topology",)
    leader = text_or_none("leader")
    brokers = values("brokers", Broker)


class GrantedNamespace(Record):
    schema: ClassVar[Schemas] = ("GrantedNamespace",)
    name = text("name")
    rights = values("rights", str)


class WhoAmI(Record):
    schema: ClassVar[Schemas] = ("WhoAmI",)
    tokens = boolean("tokens")
    admin = boolean("admin")
    namespaces = values("namespaces", GrantedNamespace)
    broker = text("broker")
    cluster = text_or_none("cluster")
    store = text("store")
    version = text("version")
    time = instant("time")


class Connection(Record):
    """A connection of the configuration, as the broker that answers sees it."""

    schema: ClassVar[Schemas] = ("Connection",)
    name = text("name")
    kind = text("kind")
    address = text("address")
    state = text("state")
    since = instant("since")
    problem = text_or_none("problem")
    sessions = integer("sessions")
    waiting = integer("waiting")
    in_flight = integer("in_flight")
    confirmed = integer("confirmed")
    failed = integer("failed")
    namespaces = values("namespaces", str)
    allow = values("allow", str)
    statements = values("statements", str)


class Source(Record):
    """A source of the configuration, as the broker that answers reads it."""

    schema: ClassVar[Schemas] = ("Source",)
    name = text("name")
    namespace = text("namespace")
    read_at = instant_or_none("read_at")
    applied = integer("applied")
    rejected = integer("rejected")
    lag_ms = integer("lag_ms")
    problem = text_or_none("problem")


class Connections(Record):
    schema: ClassVar[Schemas] = ("Connections",)
    connections = values("connections", Connection)
    sources = values("sources", Source)


class ConnectionTest(Record):
    """Whether a connection works, and why not."""

    schema: ClassVar[Schemas] = ("ConnectionTest",)
    name = text("name")
    works = boolean("works")
    problem = text_or_none("problem")


class Ready(Record):
    schema: ClassVar[Schemas] = ("Ready",)
    ready = boolean("ready")
    reasons = values("reasons", str)
    warnings = values("warnings", str)


class AlarmTest(Record):
    """How the test notice of an alarm ended."""

    schema: ClassVar[Schemas] = ("AlarmTest",)
    state = text("state")
    reason = text_or_none("reason")
    answer = converted_or_none("answer", Answer)


class AlarmNotice(AlarmTest):
    schema: ClassVar[Schemas] = ("AlarmNotice",)
    at = instant("at")
    kind = text_or_none("kind")


class Alarm(Record):
    schema: ClassVar[Schemas] = ("Alarm",)
    name = text("name")
    when = anything("when")
    to = anything("to")
    repeat_after = duration_or_none("repeat_after")
    state = text("state")
    since = instant("since")
    value = anything("value")
    notices = integer("notices")
    last_notice = converted_or_none("last_notice", AlarmNotice)


class Operation(Record):
    """A change of all tasks that match a filter."""

    schema: ClassVar[Schemas] = ("Operation",)
    id = text("id")
    do = text("do")
    where = anything("where")
    later = duration_or_none("later")
    state = text("state")
    matched = integer("matched")
    changed = integer("changed")
    failed = integer("failed")
    problem = text_or_none("problem")
    started_at = instant("started_at")
    ended_at = instant_or_none("ended_at")
    by = text("by")


class Action(Record):
    """A call of an operator that succeeded. `call` is its name in the OpenAPI document."""

    schema: ClassVar[Schemas] = ("Action",)
    at = instant("at")
    call = text("call")
    by = text("by")
    name = text_or_none("name")
    detail = text_or_none("detail")
    changed = integer_or_none("changed")


class Actions(Record):
    """What operators did, newest first; all since `since`, if all brokers have answered (`complete`)."""

    schema: ClassVar[Schemas] = ("Actions",)
    actions = values("actions", Action)
    since = instant("since")
    complete = boolean("complete")


class DryRun(Record):
    schema: ClassVar[Schemas] = ("DryRun",)
    matched = integer("matched")
    exact = boolean("exact")
    sample = values("sample", Task)


class Lags(Record):
    schema: ClassVar[Schemas] = ("LagAnswer",)
    p50 = number("p50")
    p99 = number("p99")
    p999 = number("p999")
    max = number("max")


class SeriesPoint(Record):
    schema: ClassVar[Schemas] = ("SeriesPoint",)
    at = instant("at")
    done = integer("done")
    failed = integer("failed")
    dead = integer("dead")
    lag = values("lag", int)
    lag_ms = converted_or_none("lag_ms", Lags)


class Series(Record):
    """What ended in each step of the last hours."""

    schema: ClassVar[Schemas] = ("Series",)
    start = instant("from")
    step = duration("step")
    since = instant_or_none("since")
    lag_bounds_ms = values("lag_bounds_ms", int)
    points = values("points", SeriesPoint)


class LiveRates(Record):
    schema: ClassVar[Schemas] = ("LiveRates",)
    done = number("done")
    failed = number("failed")
    dead = number("dead")


class LiveStates(Record):
    schema: ClassVar[Schemas] = ("LiveStates",)
    accepted = integer("accepted")
    scheduled = integer("scheduled")
    firing = integer("firing")
    paused = integer("paused")
    done = integer("done")
    dead = integer("dead")
    cancelled = integer("cancelled")
    dead_letters = integer("dead_letters")


class LiveSecond(Topology):
    """One second of a live stream. Only the stream of all namespaces has `leader` and `brokers`."""

    schema: ClassVar[Schemas] = ("LiveSecond",)
    at = instant("at")
    counts = converted("counts", LiveStates)
    waiting = integer("waiting")
    in_flight = integer("in_flight")
    oldest_overdue_ms = integer_or_none("oldest_overdue_ms")
    rates = converted("rates", LiveRates)
    lag_ms = converted_or_none("lag_ms", Lags)
    attempts = integer("attempts")


class AckResult(Record):
    """`acked`, `stale`, or `rejected` with a problem."""

    schema: ClassVar[Schemas] = ("AckedOne",)
    token = text("token")
    result = text("result")
    problem = converted_or_none("problem", Problem)


class Settled(Record):
    """`failed`, `refused`, `extended`, or `stale` if the attempt was over."""

    schema: ClassVar[Schemas] = ("Settled",)
    result = text("result")


class Fire(Record, Generic[P]):
    """One delivery to a worker. `payload` has the type that the worker asked for."""

    __slots__ = ("_payload",)
    schema: ClassVar[Schemas] = ("Delivery",)
    token = text("token")
    fire_id = text("fire_id")
    task = text("task")
    key = text_or_none("key")
    occasion = text("occasion")
    attempt = integer("attempt")
    version = integer("version")
    fire_at = instant("fire_at")
    fired_at = instant("fired_at")
    lag_ms = integer("lag_ms")
    lease = duration("lease")
    payload_base64 = text_or_none("payload_base64")
    content_type = text_or_none("content_type")
    callback_of = text_or_none("callback_of")

    _payload: P

    @property
    def payload(self) -> P:
        try:
            return self._payload
        except AttributeError:
            encoded = self.json.get("payload_base64")
            raw: Any = self.json.get("payload") if encoded is None else base64.b64decode(encoded)
            self._payload = raw
            return self._payload

    def with_payload(self, payload: Any) -> Fire[Any]:
        """The same delivery with its payload converted."""
        fire: Fire[Any] = Fire(self.json)
        fire._payload = payload
        return fire

    @classmethod
    def fields(cls) -> dict[str, str]:
        return {**super().fields(), "payload": "payload"}


class Clock(Record):
    """The virtual clock of `punctual dev`."""

    now = instant("now")


class Advanced(Record):
    """What moving the clock did: fires that became due, and those that no worker has settled yet."""

    now = instant("now")
    fires = integer("fires")
    unsettled = integer_or_none("unsettled")


class Page(Generic[R]):
    """One page of a list, and the cursor of the next one."""

    def __init__(self, items: list[R], next: str | None) -> None:
        self.items = items
        self.next = next
