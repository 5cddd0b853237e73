"""The calls of the HTTP API, without input or output: requests are built and answers are read in pure code.

`Calls` has one method per call. Each returns a `Call` (or `Pages` of calls), which `Client` and `AsyncClient` send.
`ROUTES` lists every route with its parameters; a test compares it with the OpenAPI document of the broker.
"""

from __future__ import annotations

import json as json_codec
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from . import records as r
from ._payload import plain
from ._units import Duration, Instant, duration_text, instant_json, seconds
from .alarms import AlarmCondition, AlarmReceiver
from .errors import Problem, error_of
from .targets import NewTask, TaskFields, TaskLike, task_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Json = Any
ENTRIES_MAX = 10_000
"""Most keys, ids or tokens of one request: the limit of the broker."""


@dataclass(frozen=True)
class Route:
    """A route of the API, the name of the method that calls it, and its query parameters and headers."""

    method: str
    path: str
    by: str
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


_PAGE = ("limit", "cursor")
_TASK = "/v1/{namespace}/tasks/{key}"
_QUEUE = "/v1/{namespace}/queues/{queue}"
ROUTES = (
    Route("GET", "/livez", "livez"),
    Route("GET", "/readyz", "readyz"),
    Route("GET", "/metrics", "metrics"),
    Route("GET", "/openapi.json", "openapi"),
    Route("GET", "/v1/connections", "connections"),
    Route("POST", "/v1/connections/{connection}/test", "test_connection"),
    Route("GET", "/v1/live", "live_all"),
    Route("GET", "/v1/namespaces", "namespaces", _PAGE),
    Route(
        "GET",
        "/v1/preview",
        "preview",
        ("cron", "timezone", "count", "from", "dst_gap", "dst_overlap"),
    ),
    Route("GET", "/v1/topology", "topology"),
    Route("GET", "/v1/whoami", "whoami"),
    Route("GET", "/v1/{namespace}/actions", "actions", ("limit",)),
    Route("GET", "/v1/{namespace}/alarms", "alarms"),
    Route("DELETE", "/v1/{namespace}/alarms/{name}", "delete_alarm"),
    Route("GET", "/v1/{namespace}/alarms/{name}", "alarm"),
    Route("PUT", "/v1/{namespace}/alarms/{name}", "put_alarm"),
    Route("POST", "/v1/{namespace}/alarms/{name}/test", "test_alarm"),
    Route("POST", "/v1/{namespace}/cancel", "cancel_many"),
    Route("GET", "/v1/{namespace}/dead", "dead", ("reason", "target", *_PAGE)),
    Route("POST", "/v1/{namespace}/dead/delete", "delete_dead_many"),
    Route("GET", "/v1/{namespace}/dead/groups", "dead_groups"),
    Route("POST", "/v1/{namespace}/dead/redrive", "redrive"),
    Route("DELETE", "/v1/{namespace}/dead/{fire_id}", "delete_dead"),
    Route(
        "GET",
        "/v1/{namespace}/fires",
        "fires",
        ("end", "key_prefix", "label", "from", "to", *_PAGE),
    ),
    Route("GET", "/v1/{namespace}/forecast", "forecast", ("for", "step", "at", "by")),
    Route("GET", "/v1/{namespace}/lanes", "lanes"),
    Route("GET", "/v1/{namespace}/live", "live"),
    Route("GET", "/v1/{namespace}/operations", "operations"),
    Route("POST", "/v1/{namespace}/operations", "start_operation"),
    Route("DELETE", "/v1/{namespace}/operations/{id}", "stop_operation"),
    Route("GET", "/v1/{namespace}/operations/{id}", "operation"),
    Route("GET", "/v1/{namespace}/queues", "queues"),
    Route("POST", _QUEUE + "/ack", "ack"),
    Route("POST", _QUEUE + "/extend", "extend"),
    Route("POST", _QUEUE + "/fail", "fail"),
    Route("POST", _QUEUE + "/lease", "lease"),
    Route("POST", _QUEUE + "/refuse", "refuse"),
    Route("GET", "/v1/{namespace}/rules", "list_rules"),
    Route("DELETE", "/v1/{namespace}/rules/{prefix}", "delete_rule"),
    Route("PUT", "/v1/{namespace}/rules/{prefix}", "put_rule"),
    Route("GET", "/v1/{namespace}/series", "series", ("for", "step")),
    Route("GET", "/v1/{namespace}/stats", "stats"),
    Route(
        "GET",
        "/v1/{namespace}/tasks",
        "list",
        ("state", "kind", "key_prefix", "label", "from", "to", *_PAGE),
    ),
    Route("POST", "/v1/{namespace}/tasks", "schedule_many", (), ("idempotency-key", "prefer")),
    Route("DELETE", _TASK, "cancel"),
    Route("GET", _TASK, "get", ("after_version", "wait")),
    Route("PUT", _TASK, "schedule", (), ("if-none-match", "if-match", "prefer")),
    Route("GET", _TASK + "/explain", "explain"),
    Route("POST", _TASK + "/fire", "fire"),
    Route("GET", _TASK + "/fires", "history", ("limit",)),
    Route("POST", _TASK + "/pause", "pause"),
    Route("POST", _TASK + "/resume", "resume"),
    Route("POST", _TASK + "/touch", "touch", (), ("prefer",)),
    Route("POST", "/v1/{namespace}/touch", "touch_many"),
    Route("GET", "/v1/{namespace}/workers", "workers"),
)
DEV_ROUTES = (
    Route("GET", "/v1/clock", "clock"),
    Route("POST", "/v1/clock/advance", "advance_clock"),
    Route("POST", "/v1/clock/run", "run_clock"),
    Route("POST", "/v1/clock/freeze", "freeze_clock"),
)
"""Routes of `punctual dev` only."""

REQUESTS: dict[str, set[str]] = {
    "AlarmRule": {"when", "to", "repeat_after"},
    "CancelMany": {"keys", "ids"},
    "DeadLetterSelection": {"ids", "all", "where"},
    "DeadGroupFilter": {"reason", "target"},
    "NewOperation": {"do", "where", "later", "dry_run"},
    "TaskFilter": {"state", "kind", "key_prefix", "label", "from", "to"},
    "Ack": {"tokens", "acks"},
    "AckEntry": {"token", "result"},
    "Extend": {"token", "lease"},
    "Fail": {"token", "reason", "retry_in"},
    "Lease": {"max", "wait", "lease", "worker"},
    "Refuse": {"token", "reason"},
    "Touch": {"in", "at", "within"},
    "TouchMany": {"keys", "in", "at", "within", "create"},
}
"""Bodies that methods build from their arguments. Those of tasks are in `targets`."""


@dataclass(frozen=True)
class Response:
    """An answer of a broker."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Json:
        return json_codec.loads(self.body)

    def retry_after(self) -> float | None:
        """Seconds. An HTTP date, which brokers do not send, counts as none."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdigit() else None

    def problem(self) -> Problem:
        """The problem document, or one made up from the status if a proxy answered instead of a broker."""
        try:
            document = self.json()
            if isinstance(document, dict) and "type" in document and "status" in document:
                return Problem(document)
        except ValueError:
            pass
        text = self.body[:200].decode("utf-8", "replace")
        return Problem(
            {
                "type": "about:blank",
                "title": "Not an answer of a broker",
                "status": self.status,
                "detail": text,
            }
        )


def _raise(response: Response) -> Any:
    raise error_of(response.problem(), response.retry_after())


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Response], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    """Whether it can be sent again when its outcome is not known, without harm."""
    wait: float = 0.0
    """How long the broker may hold the request, in seconds."""
    refused: Callable[[Response], T] = _raise
    """Reads an answer that is not a success; raises unless the call gives it a meaning."""

    def finish(self, response: Response) -> T:
        return self.read(response) if response.status < 300 else self.refused(response)


@dataclass(frozen=True)
class Pages(Generic[T]):
    """A list of several pages."""

    path: str
    query: Mapping[str, Json]
    name: str
    item: Callable[[Json], T]

    def page(self, cursor: str | None) -> Call[r.Page[T]]:
        query = dict(self.query)
        if cursor is not None:
            query["cursor"] = cursor

        def read(response: Response) -> r.Page[T]:
            json = response.json()
            return r.Page([self.item(one) for one in json[self.name]], json.get("next"))

        return Call("GET", _with_query(self.path, query), read)


@dataclass(frozen=True)
class Events(Generic[T]):
    """A stream of server-sent events."""

    path: str
    item: Callable[[Json], T]

    def parse(self, line: str) -> T | None:
        """The event of a line of the stream, if it has one. Events of the broker have one `data` line."""
        return self.item(json_codec.loads(line[5:])) if line.startswith("data:") else None


def _as(convert: Callable[[Json], T]) -> Callable[[Response], T]:
    return lambda response: convert(response.json())


def _all(name: str, item: Callable[[Json], T]) -> Callable[[Response], Sequence[T]]:
    return lambda response: [item(one) for one in response.json()[name]]


def _quoted(part: str) -> str:
    # "." and ".." as a whole segment would be removed by URL normalization.
    return quote(part, safe="") if part.strip(".") else part.replace(".", "%2E")


def _with_query(path: str, query: Mapping[str, Json]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _encode(json: Json) -> bytes:
    return json_codec.dumps(json, ensure_ascii=False, separators=(",", ":")).encode()


def _set(**fields: Json) -> dict[str, Json]:
    """The fields that are given. A trailing `_` lets a field have the name of a keyword."""
    return {name.rstrip("_"): value for name, value in fields.items() if value is not None}


def _text(duration: Duration | None) -> str | None:
    return None if duration is None else duration_text(duration)


def _time(instant: Instant | None) -> str | int | None:
    return None if instant is None else instant_json(instant)


def _label(label: Mapping[str, str] | str | None) -> str | None:
    if label is None or isinstance(label, str):
        return label
    if len(label) != 1:
        raise ValueError("a list is filtered by exactly one label")
    return next(f"{name}:{value}" for name, value in label.items())


def _not_found(response: Response) -> r.CancelResult:
    problem = response.problem()
    if problem.type != "urn:punctual:task-not-found":
        _raise(response)
    return r.NotFound({"result": "not_found", "problem": problem.json})


Due: TypeAlias = dict[str, Json]


def _due(after: Duration | None, at: Instant | None, within: Duration | None) -> Due:
    return _set(in_=_text(after), at=_time(at), within=_text(within))


@dataclass(frozen=True)
class Calls:
    """The calls of one namespace. Each method returns what to send; nothing is sent here."""

    namespace: str

    def _path(self, *parts: str) -> str:
        return "/v1/" + "/".join(_quoted(part) for part in (self.namespace, *parts))

    def _get(self, path: str, read: Callable[[Response], T], **query: Json) -> Call[T]:
        return Call("GET", _with_query(path, query), read)

    def _post(
        self,
        path: str,
        body: Json | None,
        read: Callable[[Response], T],
        *,
        repeatable: bool = True,
        wait: float = 0.0,
        headers: Mapping[str, str] | None = None,
    ) -> Call[T]:
        encoded = None if body is None else _encode(body)
        return Call("POST", path, read, encoded, headers or {}, repeatable, wait)

    # Tasks

    def schedule(
        self,
        key: str | None = None,
        task: TaskLike | None = None,
        *,
        if_match: int | None = None,
        if_none_match: bool = False,
        idempotency_key: str | None = None,
        **fields: Unpack[TaskFields],
    ) -> Call[r.Task]:
        """Creates or replaces the task with this key; without a key, creates one.

        `if_none_match=True` only creates (`ExistsError`), `if_match` only replaces that version
        (`VersionMismatchError`).
        """
        return self._schedule(key, task, fields, if_match, if_none_match, idempotency_key, {}, r.Task)

    def schedule_minimal(
        self,
        key: str | None = None,
        task: TaskLike | None = None,
        *,
        if_match: int | None = None,
        if_none_match: bool = False,
        idempotency_key: str | None = None,
        **fields: Unpack[TaskFields],
    ) -> Call[r.TaskRef]:
        """Like `schedule`; the answer has only id, time and version of the task."""
        prefer = {"prefer": "return=minimal"}
        return self._schedule(key, task, fields, if_match, if_none_match, idempotency_key, prefer, r.TaskRef)

    def _schedule(
        self,
        key: str | None,
        task: TaskLike | None,
        fields: TaskFields,
        if_match: int | None,
        if_none_match: bool,
        idempotency_key: str | None,
        headers: dict[str, str],
        answer: Callable[[Json], T],
    ) -> Call[T]:
        body = _encode(task_json(task, fields))
        if key is None:
            headers["idempotency-key"] = idempotency_key or uuid.uuid4().hex
            return Call("POST", self._path("tasks"), _as(answer), body, headers)
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        if if_match is not None:
            headers["if-match"] = f'"{if_match}"'
        if if_none_match:
            headers["if-none-match"] = "*"
        # Sent twice, a condition that held the first time does not hold the second time.
        repeatable = if_match is None and not if_none_match
        return Call("PUT", self._path("tasks", key), _as(answer), body, headers, repeatable)

    def schedule_many(
        self, tasks: Iterable[TaskLike], *, idempotency_key: str | None = None
    ) -> Call[r.Results[r.Task | Problem]]:
        """Creates or replaces many tasks: one result each, in order. A bad one does not stop the others."""
        return self._post(
            self._path("tasks"),
            [task.json if isinstance(task, NewTask) else task for task in tasks],
            lambda response: r.Results(response.json(), r.task_or_problem),
            headers={"idempotency-key": idempotency_key or uuid.uuid4().hex},
        )

    def get(self, task: str, *, after_version: int | None = None, wait: Duration | None = None) -> Call[r.Task]:
        """The task with this key or id. With `wait`, waits until it has another version than `after_version`."""
        path = self._path("tasks", task)
        call = self._get(path, _as(r.Task), after_version=after_version, wait=_text(wait))
        return call if wait is None else replace(call, wait=seconds(wait))

    def cancel(self, task: str) -> Call[r.CancelResult]:
        """Cancels a task, and says whether that came in time. A task that does not exist is `NotFound`."""
        path = self._path("tasks", task)
        return Call("DELETE", path, _as(r.cancel_result), refused=_not_found)

    def cancel_many(
        self, keys: Iterable[str] | None = None, *, ids: Iterable[str] | None = None
    ) -> Call[r.Results[r.CancelResult | r.CancelFailed]]:
        """Cancels up to 10,000 tasks by key or by id: one result each, in order."""
        return self._post(
            self._path("cancel"),
            _set(keys=None if keys is None else list(keys), ids=None if ids is None else list(ids)),
            lambda response: r.Results(response.json(), r.cancel_many_result),
        )

    def touch(
        self,
        task: str,
        *,
        within: Duration | None = None,
        after: Duration | None = None,
        at: Instant | None = None,
    ) -> Call[r.Task]:
        """Postpones a watch, or moves a task that fires once."""
        path = self._path("tasks", task, "touch")
        return self._post(path, _due(after, at, within), _as(r.Task))

    def touch_minimal(
        self,
        task: str,
        *,
        within: Duration | None = None,
        after: Duration | None = None,
        at: Instant | None = None,
    ) -> Call[r.TaskRef]:
        """Like `touch`; the answer has only time and version of the task."""
        path, headers = self._path("tasks", task, "touch"), {"prefer": "return=minimal"}
        return self._post(path, _due(after, at, within), _as(r.TaskRef), headers=headers)

    def touch_many(
        self,
        keys: Iterable[str],
        *,
        create: TaskLike | None = None,
        within: Duration | None = None,
        after: Duration | None = None,
        at: Instant | None = None,
    ) -> Call[r.Touched]:
        """Touches up to 10,000 keys; with `create`, creates those that are missing."""
        body = {"keys": list(keys), **_due(after, at, within)}
        if create is not None:
            body["create"] = task_json(create, {})
        return self._post(self._path("touch"), body, _as(r.Touched))

    def list_rules(self) -> Call[Sequence[r.Rule]]:
        """The touch rules of the namespace."""
        return self._get(self._path("rules"), _all("rules", r.Rule))

    def put_rule(self, prefix: str, watch: TaskLike | None = None, **fields: Unpack[TaskFields]) -> Call[r.Rule]:
        """Sets the watch that a touch creates for a key which begins with `prefix` and does not exist."""
        body = _encode(task_json(watch, fields))
        return Call("PUT", self._path("rules", prefix), _as(r.Rule), body)

    def delete_rule(self, prefix: str) -> Call[r.Deleted]:
        """Deletes a touch rule. Watches that it created stay."""
        return Call("DELETE", self._path("rules", prefix), _as(r.Deleted), repeatable=False)

    def pause(self, task: str) -> Call[r.Task]:
        """Keeps a task from firing until it is resumed."""
        return self._post(self._path("tasks", task, "pause"), None, _as(r.Task))

    def resume(self, task: str) -> Call[r.Task]:
        """Lets a paused task fire again."""
        return self._post(self._path("tasks", task, "resume"), None, _as(r.Task))

    def fire(self, task: str) -> Call[r.Task]:
        """Fires a task now, once, in addition to its schedule."""
        path = self._path("tasks", task, "fire")
        return self._post(path, None, _as(r.Task), repeatable=False)

    def explain(self, task: str) -> Call[r.Explanation]:
        """What a task waits for, or how it ended."""
        return self._get(self._path("tasks", task, "explain"), _as(r.Explanation))

    def tasks(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        key_prefix: str | None = None,
        label: Mapping[str, str] | str | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
    ) -> Pages[r.Task]:
        """Tasks in the order of `fire_at`, from `start` to `end`. `limit` is the length of a page."""
        query = _set(
            state=state,
            kind=kind,
            key_prefix=key_prefix,
            label=_label(label),
            from_=_time(start),
            to=_time(end),
            limit=limit,
        )
        return Pages(self._path("tasks"), query, "tasks", r.Task)

    # History and dead letters

    def history(self, task: str, *, limit: int | None = None) -> Call[Sequence[r.FireRecord]]:
        """The fires of one task that have ended, newest first."""
        path = self._path("tasks", task, "fires")
        return self._get(path, _all("fires", r.FireRecord), limit=limit)

    def fires(
        self,
        *,
        ended: str | None = None,
        key_prefix: str | None = None,
        label: Mapping[str, str] | str | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        limit: int | None = None,
    ) -> Pages[r.FireRecord]:
        """The fires of all tasks that ended (`ended` says how) from `start` to `end`, newest first."""
        query = _set(
            end=ended,
            key_prefix=key_prefix,
            label=_label(label),
            from_=_time(start),
            to=_time(end),
            limit=limit,
        )
        return Pages(self._path("fires"), query, "fires", r.FireRecord)

    def dead(
        self, *, reason: str | None = None, target: str | None = None, limit: int | None = None
    ) -> Pages[r.DeadLetter]:
        """Dead letters, of one group if `reason` or `target` is given."""
        query = _set(reason=reason, target=target, limit=limit)
        return Pages(self._path("dead"), query, "dead", r.DeadLetter)

    def dead_groups(self) -> Call[r.DeadGroups]:
        """Counts of dead letters by reason and target."""
        return self._get(self._path("dead", "groups"), _as(r.DeadGroups))

    def redrive(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool | None = None,
        where: Mapping[str, str] | None = None,
    ) -> Call[r.Redriven]:
        """Schedules dead letters again: by fire id, all, or one group (`{"reason", "target"}`)."""
        body = _set(ids=None if ids is None else list(ids), all=all, where=where)
        # Sent twice, letters that died again in between would be redriven twice.
        path = self._path("dead", "redrive")
        return self._post(path, body, _as(r.Redriven), repeatable=False)

    def delete_dead(self, fire_id: str) -> Call[r.Deleted]:
        """Deletes one dead letter."""
        path = self._path("dead", fire_id)
        return Call("DELETE", path, _as(r.Deleted), repeatable=False)

    def delete_dead_many(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool | None = None,
        where: Mapping[str, str] | None = None,
    ) -> Call[r.DeletedLetters]:
        """Deletes dead letters: by fire id, all, or one group."""
        body = _set(ids=None if ids is None else list(ids), all=all, where=where)
        path = self._path("dead", "delete")
        return self._post(path, body, _as(r.DeletedLetters), repeatable=False)

    # Counts and forecasts

    def stats(self) -> Call[r.Stats]:
        """Counts of the namespace by state."""
        return self._get(self._path("stats"), _as(r.Stats))

    def forecast(
        self,
        length: Duration | None = None,
        step: Duration | None = None,
        *,
        at: Instant | None = None,
        by: Literal["target"] | None = None,
    ) -> Call[r.Forecast]:
        """How many fires are expected per step, with `by="target"` also of each target."""
        query = {"for": _text(length), "step": _text(step), "at": _time(at), "by": by}
        return self._get(self._path("forecast"), _as(r.Forecast), **query)

    def series(self, length: Duration | None = None, step: Duration | None = None) -> Call[r.Series]:
        """What ended in each step of the last hours."""
        query = {"for": _text(length), "step": _text(step)}
        return self._get(self._path("series"), _as(r.Series), **query)

    def live(self) -> Events[r.LiveSecond]:
        """Counts, rates and lags of the namespace, one a second."""
        return Events(self._path("live"), r.LiveSecond)

    def live_all(self) -> Events[r.LiveSecond]:
        """Like `live`, over all namespaces. Needs an admin token."""
        return Events("/v1/live", r.LiveSecond)

    def preview(
        self,
        cron: str,
        *,
        timezone: str | None = None,
        count: int | None = None,
        start: Instant | None = None,
        dst_gap: str | None = None,
        dst_overlap: str | None = None,
    ) -> Call[r.Preview]:
        """The next fires of a cron expression after `start`."""
        query = _set(
            cron=cron,
            timezone=timezone,
            count=count,
            from_=_time(start),
            dst_gap=dst_gap,
            dst_overlap=dst_overlap,
        )
        return self._get("/v1/preview", _as(r.Preview), **query)

    # Operations

    def start_operation(
        self,
        do: Literal["cancel", "pause", "resume", "fire", "shift", "spread"] | str,
        where: Mapping[str, Json],
        *,
        later: Duration | None = None,
    ) -> Call[r.Operation]:
        """Changes all tasks that match `where`; `{}` is every task.

        `shift` makes each due later by `later`, `spread` by a part of it that is different for each.
        """
        return self._post(
            self._path("operations"),
            _set(do=do, where=_filter(where), later=_text(later)),
            lambda response: r.Operation(response.json()["operation"]),
            repeatable=False,
        )

    def dry_run(self, do: str, where: Mapping[str, Json], *, later: Duration | None = None) -> Call[r.DryRun]:
        """Counts the tasks that an operation would change."""
        body = _set(do=do, where=_filter(where), later=_text(later), dry_run=True)
        return self._post(self._path("operations"), body, _as(r.DryRun))

    def operation(self, id: str) -> Call[r.Operation]:
        """How far an operation is."""
        path = self._path("operations", id)
        return self._get(path, lambda response: r.Operation(response.json()["operation"]))

    def stop_operation(self, id: str) -> Call[r.Operation]:
        """Stops an operation after its present step."""
        path = self._path("operations", id)
        return Call("DELETE", path, lambda response: r.Operation(response.json()["operation"]))

    def operations(self) -> Call[Sequence[r.Operation]]:
        """The latest operations, newest first."""
        return self._get(self._path("operations"), _all("operations", r.Operation))

    def actions(self, *, limit: int | None = None) -> Call[r.Actions]:
        """What operators did, newest first. Brokers keep the latest in memory, and all in their logs."""
        return self._get(self._path("actions"), _as(r.Actions), **_set(limit=limit))

    # Alarms

    def put_alarm(
        self,
        name: str,
        *,
        when: AlarmCondition,
        to: AlarmReceiver,
        repeat_after: Duration | None = None,
    ) -> Call[r.Alarm]:
        """Creates or replaces an alarm. `docs/alarms.md` has conditions and receivers."""
        body = _set(when=when, to=to, repeat_after=_text(repeat_after))
        return Call("PUT", self._path("alarms", name), _as(r.Alarm), _encode(body))

    def alarm(self, name: str) -> Call[r.Alarm]:
        """An alarm with its state and present value."""
        return self._get(self._path("alarms", name), _as(r.Alarm))

    def alarms(self) -> Call[Sequence[r.Alarm]]:
        """All alarms of the namespace."""
        return self._get(self._path("alarms"), _all("alarms", r.Alarm))

    def delete_alarm(self, name: str) -> Call[r.Deleted]:
        """Deletes an alarm."""
        path = self._path("alarms", name)
        return Call("DELETE", path, _as(r.Deleted), repeatable=False)

    def test_alarm(self, name: str) -> Call[r.AlarmTest]:
        """Sends a test notice, and waits up to five seconds for its outcome."""
        path = self._path("alarms", name, "test")
        return self._post(path, None, _as(r.AlarmTest), repeatable=False, wait=5.0)

    # Queues

    def lease(
        self,
        queue: str,
        *,
        max: int | None = None,
        wait: Duration | None = None,
        lease: Duration | None = None,
        worker: str | None = None,
    ) -> Call[Sequence[r.Fire[Any]]]:
        """Waits up to `wait` for deliveries and holds each for `lease`. `Worker` does this by itself."""
        body = _set(max=max, wait=_text(wait), lease=_text(lease), worker=worker)
        return self._post(
            self._path("queues", queue, "lease"),
            body,
            _all("deliveries", r.Fire),
            repeatable=False,
            wait=0.0 if wait is None else seconds(wait),
        )

    def ack(
        self,
        queue: str,
        tokens: Iterable[str] | None = None,
        *,
        results: Iterable[tuple[str, Json]] | None = None,
    ) -> Call[r.Results[r.AckResult]]:
        """Acknowledges deliveries, without (`tokens`) or with (`results`: token and value) a result."""
        acks = None if results is None else [_ack(token, value) for token, value in results]
        body = _set(tokens=None if tokens is None else list(tokens), acks=acks)
        path = self._path("queues", queue, "ack")
        return self._post(path, body, lambda response: r.Results(response.json(), r.AckResult))

    def fail(self, queue: str, token: str, reason: str = "", *, retry_in: Duration | None = None) -> Call[r.Settled]:
        """Reports a failed attempt."""
        body = _set(token=token, reason=reason or None, retry_in=_text(retry_in))
        return self._post(self._path("queues", queue, "fail"), body, _as(r.Settled))

    def refuse(self, queue: str, token: str, reason: str = "") -> Call[r.Settled]:
        """Reports that no further attempt makes sense."""
        body = _set(token=token, reason=reason or None)
        return self._post(self._path("queues", queue, "refuse"), body, _as(r.Settled))

    def extend(self, queue: str, token: str, lease: Duration) -> Call[r.Settled]:
        """Holds a delivery for `lease` from now on."""
        body = {"token": token, "lease": duration_text(lease)}
        return self._post(self._path("queues", queue, "extend"), body, _as(r.Settled))

    def queues(self) -> Call[Sequence[r.QueueInfo]]:
        """What waits in queues."""
        return self._get(self._path("queues"), _all("queues", r.QueueInfo))

    def lanes(self) -> Call[r.Lanes]:
        """What waits for each target, what is in flight to it, and what has failed lately."""
        return self._get(self._path("lanes"), _as(r.Lanes))

    def workers(self) -> Call[Sequence[r.WorkerInfo]]:
        """The workers of the namespace."""
        return self._get(self._path("workers"), _all("workers", r.WorkerInfo))

    # The broker

    def namespaces(self, *, limit: int | None = None) -> Pages[r.CountedNamespace]:
        """All namespaces with their counts. Needs an admin token."""
        return Pages("/v1/namespaces", _set(limit=limit), "namespaces", r.CountedNamespace)

    def topology(self) -> Call[r.Topology]:
        """The brokers, and which partitions each owns."""
        return self._get("/v1/topology", _as(r.Topology))

    def whoami(self) -> Call[r.WhoAmI]:
        """What the token grants, and which broker answers."""
        return self._get("/v1/whoami", _as(r.WhoAmI))

    def connections(self) -> Call[r.Connections]:
        """The connections and sources of the broker that answers. Needs an admin token."""
        return self._get("/v1/connections", _as(r.Connections))

    def test_connection(self, name: str) -> Call[r.ConnectionTest]:
        """Opens a session of a connection, and waits up to ten seconds for the other side. Needs an admin token."""
        path = f"/v1/connections/{_quoted(name)}/test"
        return self._post(path, None, _as(r.ConnectionTest), wait=10.0)

    def livez(self) -> Call[str]:
        """Answers if the broker runs."""
        return self._get("/livez", lambda response: response.body.decode())

    def readyz(self) -> Call[r.Ready]:
        """Whether the broker is ready; `UnavailableError` if not."""
        return self._get("/readyz", _as(r.Ready))

    def metrics(self) -> Call[str]:
        """Metrics in the text format of OpenMetrics."""
        return self._get("/metrics", lambda response: response.body.decode())

    def openapi(self) -> Call[Mapping[str, Json]]:
        """The OpenAPI document of the broker."""
        return self._get("/openapi.json", lambda response: response.json())

    # The clock of `punctual dev`

    def clock(self) -> Call[r.Clock]:
        """The virtual clock."""
        return self._get("/v1/clock", _as(r.Clock))

    def advance_clock(
        self,
        by: Duration | None = None,
        *,
        to: Instant | None = None,
        wait: Duration | None = None,
    ) -> Call[r.Advanced]:
        """Moves the virtual clock. `wait` is the real time to wait for deliveries that workers hold."""
        body = _set(by=_text(by), to=_time(to), wait=_text(wait))
        # A long way has many fires: the broker answers when all of them were delivered.
        return self._post("/v1/clock/advance", body, _as(r.Advanced), repeatable=False, wait=60.0)

    def run_clock(self, speed: float) -> Call[r.Clock]:
        """Lets the virtual clock run, `speed` times as fast as real time."""
        return self._post("/v1/clock/run", {"speed": speed}, _as(r.Clock))

    def freeze_clock(self) -> Call[r.Clock]:
        """Stops the virtual clock."""
        return self._post("/v1/clock/freeze", None, _as(r.Clock))


def _ack(token: str, result: Json) -> Json:
    return {"token": token} if result is None else {"token": token, "result": plain(result)}


def _filter(where: Mapping[str, Json]) -> Json:
    """The filter of an operation. Times and labels may be Python's own types."""
    unknown = set(where) - REQUESTS["TaskFilter"]
    if unknown:
        raise ValueError(f"a filter of tasks has no {sorted(unknown)}")
    body = dict(where)
    for name in ("from", "to"):
        if name in body:
            body[name] = _time(body[name])
    if "label" in body:
        body["label"] = _label(body["label"])
    return body
