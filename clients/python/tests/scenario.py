"""Runs the scenarios of `clients/scenarios` through the public methods of `Client` or `AsyncClient`.

Both clients have the same methods, so one runner serves both: `_value` awaits what the async client returns. An unknown
verb, argument or condition fails.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import isawaitable
from pathlib import Path
from typing import Any

from punctual import AsyncClient, Client, Fire, NewTask, NotFound, ProblemError, Refuse, Retry, Worker
from punctual.errors import Problem, error_of
from punctual.targets import TASK_ARGUMENTS
from punctual.testing import BrokerProcess
from punctual.webhooks import SignatureError, verify

from .cluster import SERVE, Cluster

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
CLOCK_DEFAULT = "2027-01-04T08:00:00Z"
NAMESPACE_DEFAULT = "shop"
WORK_SECONDS_MAX = 60.0
PAGES_MAX = 1_000
FILE_KEYS = {"name", "broker", "clock", "args", "token", "steps"}
STEP_KEYS = {"gives", "fails", "bind", "token"}
Json = Any


class Mismatch(AssertionError):
    """An answer is not as the scenario expects, or the scenario asks for something unknown."""


# Matching


def expand(value: Json, names: Mapping[str, Json]) -> Json:
    """Replaces `$name` in strings, and `$repeat` objects by the long string."""
    if isinstance(value, str):
        return re.sub(r"\$([a-z][a-z0-9_]*)", lambda m: str(names.get(m[1], m[0])), value)
    if isinstance(value, list):
        return [expand(one, names) for one in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            return value["$repeat"] * value["times"]
        # The names of conditions begin with `$` too.
        return {k if k in CONDITIONS else expand(k, names): expand(one, names) for k, one in value.items()}
    return value


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


CONDITIONS: dict[str, Callable[[Json, Json], bool]] = {
    "$lt": lambda got, operand: _number(got) and got < operand,
    "$gt": lambda got, operand: _number(got) and got > operand,
    "$length": lambda got, operand: isinstance(got, str | list | dict) and len(got) == operand,
    "$any": lambda got, operand: True,
    "$absent": lambda got, operand: False,
    "$starts": lambda got, operand: isinstance(got, str) and got.startswith(operand),
    "$contains": lambda got, operand: isinstance(got, str) and operand in got,
}


def match(want: Json, got: Json, path: str = "answer") -> None:
    if isinstance(want, dict) and any(key.startswith("$") for key in want):
        ((condition, operand),) = want.items()
        if condition not in CONDITIONS:
            raise Mismatch(f"{path}: unknown condition {condition}")
        if not CONDITIONS[condition](got, operand):
            raise Mismatch(f"{path}: expected {want}, got {got!r:.600}")
    elif isinstance(want, dict):
        if not isinstance(got, dict):
            raise Mismatch(f"{path}: expected an object, got {got!r:.600}")
        for key, one in want.items():
            absent = isinstance(one, dict) and "$absent" in one
            if absent == (key in got):
                raise Mismatch(f"{path}.{key}: expected {one!r:.200}, got {got!r:.600}")
            if not absent:
                match(one, got[key], f"{path}.{key}")
    elif isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            raise Mismatch(f"{path}: expected {len(want)} elements, got {got!r:.600}")
        for index, one in enumerate(want):
            match(one, got[index], f"{path}.{index}")
    elif isinstance(want, bool) != isinstance(got, bool) or want != got:
        raise Mismatch(f"{path}: expected {want!r:.200}, got {got!r:.600}")


def pick(answer: Json, path: str) -> Json:
    for part in path.split("."):
        answer = answer[int(part)] if isinstance(answer, list) else answer[part]
    return answer


# Broker and receiver


class Receiver:
    """An HTTP receiver with a list of answers; the last one is repeated."""

    def __init__(self, answers: list[Json]) -> None:
        self.requests: list[Json] = []
        lock = threading.Lock()
        requests = self.requests

        class Hook(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = {"method": self.command, "path": self.path, "headers": headers, "body": body.decode()}
                with lock:
                    answer = answers[min(len(requests), len(answers) - 1)]
                    requests.append(request)
                content = answer.get("body", "")
                encoded = (content if isinstance(content, str) else json.dumps(content)).encode()
                self.send_response(answer["status"])
                for name, value in answer.get("headers", {}).items():
                    self.send_header(name, value)
                if answer["status"] == 204:
                    encoded = b""
                else:
                    self.send_header("content-length", str(len(encoded)))
                self.end_headers()
                self.wfile.write(encoded)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _start(scenario: Json) -> BrokerProcess | Cluster:
    kind = scenario.get("broker", "dev")
    if kind == "cluster":
        return Cluster()
    if kind == "dev":
        command = ["dev", "--listen", "127.0.0.1:0", "--clock", scenario.get("clock", CLOCK_DEFAULT)]
    elif kind == "serve":
        command = [*SERVE, "--data-dir", "data"]
    else:
        raise Mismatch(f"unknown broker {kind!r}")
    return BrokerProcess([*command, *scenario.get("args", [])])


def _urls(broker: BrokerProcess | Cluster) -> list[str]:
    """The addresses for the client, that of the leader first."""
    if isinstance(broker, BrokerProcess):
        return [broker.url]
    leader = broker.leader().url
    return [leader, *(url for url in broker.urls if url != leader)]


# Steps


async def _value(answer: Any) -> Any:
    return await answer if isawaitable(answer) else answer


class Run:
    """One run of a scenario with one of the clients."""

    def __init__(self, scenario: Json, kind: type[Client] | type[AsyncClient]) -> None:
        unknown = set(scenario) - FILE_KEYS
        if unknown:
            raise Mismatch(f"unknown keys of the file: {unknown}")
        self.scenario = scenario
        self.names: dict[str, Json] = {}
        self.receivers: list[Receiver] = []
        self.broker = _start(scenario)
        self.base = kind(_urls(self.broker), namespace=NAMESPACE_DEFAULT, token=scenario.get("token"))
        self.client: Any = self.base
        self.arguments: dict[str, Json] = {}
        self.fails = False

    async def run(self) -> None:
        try:
            for index, step in enumerate(self.scenario["steps"]):
                try:
                    await self.step(step)
                except Mismatch as mismatch:
                    raise Mismatch(f"step {index + 1}: {str(step)[:300]}\n{mismatch}") from None
        finally:
            await _value(self.base.close())
            self.broker.stop()
            for receiver in self.receivers:
                receiver.close()

    async def step(self, step: Json) -> None:
        verbs = [key for key in step if key not in STEP_KEYS]
        if len(verbs) != 1 or not hasattr(self, f"do_{verbs[0]}"):
            raise Mismatch(f"not one known verb: {verbs}")
        verb = verbs[0]
        self.arguments = expand(step[verb] or {}, self.names)
        self.fails = "fails" in step
        self.client = self.base.with_namespace(self.take("namespace", NAMESPACE_DEFAULT))
        if "token" in step:
            self.client = self.client.with_token(expand(step["token"], self.names))
        problem = None
        try:
            answer = await getattr(self, f"do_{verb}")()
        except ProblemError as error:
            problem = answer = error.problem.json
        if self.arguments:
            raise Mismatch(f"{verb} does not know the arguments {set(self.arguments)}")
        if self.fails != (problem is not None):
            raise Mismatch(f"expected {'a failure' if self.fails else 'success'}, got {answer!r:.600}")
        if self.fails:
            match(expand(step["fails"], self.names), answer, "problem")
        if "gives" in step:
            match(expand(step["gives"], self.names), answer)
        for name, path in step.get("bind", {}).items():
            self.names[name] = pick(answer, path)

    def take(self, name: str, default: Json = None) -> Json:
        return self.arguments.pop(name, default)

    def take_all(self, **renamed: str) -> dict[str, Json]:
        """All further arguments, under the names that the client gives them."""
        given = {renamed.get(name, name): value for name, value in self.arguments.items()}
        self.arguments = {}
        return given

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await _value(getattr(self.client, method)(*args, **kwargs))

    async def json(self, method: str, *args: Any, **kwargs: Any) -> Json:
        return (await self.call(method, *args, **kwargs)).json

    def task(self, task: Json) -> Json:
        """The arguments of a task. A task that the broker has to refuse is sent as it is."""
        if self.fails or not set(task) - {"key"} <= set(TASK_ARGUMENTS):
            return task
        new = NewTask(task.get("key"), **{TASK_ARGUMENTS[n]: v for n, v in task.items() if n != "key"})
        if new.json != task:
            raise Mismatch(f"the client changes a task: {new.json}")
        return new

    async def all_pages(self, method: str, name: str, *, pages: int = PAGES_MAX, **filters: Any) -> Json:
        pages_of_list = getattr(self.client, method)(**filters).pages()
        found: list[Json] = []
        count = 0
        while count < pages:
            try:
                page = await anext(pages_of_list) if hasattr(pages_of_list, "__anext__") else next(pages_of_list)
            except (StopIteration, StopAsyncIteration):
                break
            found += [one.json for one in page.items]
            count += 1
        if count == PAGES_MAX:
            raise Mismatch(f"{name} has {PAGES_MAX} pages")
        return {name: found}

    async def do_schedule(self) -> Json:
        once = self.take("if_none_match")
        if once not in (None, "*"):
            raise Mismatch(f"unknown if_none_match {once!r}")
        key, task = self.take("key"), self.task(self.take("task"))
        return await self.json("schedule", key, task, if_none_match=once == "*", **self.take_all())

    async def do_schedule_many(self) -> Json:
        tasks = []
        for task in self.take("tasks"):
            try:
                tasks.append(self.task(task))
            except (TypeError, AttributeError):  # the broker has to refuse this one
                tasks.append(task)
        return await self.json("schedule_many", tasks)

    async def do_get(self) -> Json:
        return await self.json("get", self.take("task"))

    async def do_cancel(self) -> Json:
        result = await self.call("cancel", self.take("task"))
        if isinstance(result, NotFound):
            raise error_of(result.problem or Problem({}))
        return result.json

    async def do_pause(self) -> Json:
        return await self.json("pause", self.take("task"))

    async def do_resume(self) -> Json:
        return await self.json("resume", self.take("task"))

    async def do_fire(self) -> Json:
        return await self.json("fire", self.take("task"))

    async def do_explain(self) -> Json:
        return await self.json("explain", self.take("task"))

    async def do_touch(self) -> Json:
        return await self.json("touch", self.take("task"), **self.take_all(**{"in": "after"}))

    async def do_touch_many(self) -> Json:
        return await self.json("touch_many", self.take("keys"), **self.take_all(**{"in": "after"}))

    async def do_cancel_many(self) -> Json:
        return await self.json("cancel_many", **self.take_all())

    async def do_list(self) -> Json:
        return await self.all_pages("list", "tasks", **self.take_all(**{"from": "start", "to": "end"}))

    async def do_fires(self) -> Json:
        if "task" in self.arguments:
            found = await self.call("history", self.take("task"), **self.take_all())
            return {"fires": [one.json for one in found]}
        names = {"end": "ended", "from": "start", "to": "end"}
        return await self.all_pages("fires", "fires", **self.take_all(**names))

    async def do_dead(self) -> Json:
        return await self.all_pages("dead", "dead", **self.take_all())

    async def do_redrive(self) -> Json:
        return await self.json("redrive", **self.take_all())

    async def do_delete_dead(self) -> Json:
        return await self.json("delete_dead", self.take("fire_id"))

    async def do_stats(self) -> Json:
        return await self.json("stats")

    async def do_queues(self) -> Json:
        return {"queues": [one.json for one in await self.call("queues")]}

    async def do_lanes(self) -> Json:
        return await self.json("lanes")

    async def do_workers(self) -> Json:
        return {"workers": [one.json for one in await self.call("workers")]}

    async def do_namespaces(self) -> Json:
        return await self.all_pages("namespaces", "namespaces")

    async def do_topology(self) -> Json:
        return await self.json("topology")

    async def do_whoami(self) -> Json:
        return await self.json("whoami")

    async def do_rules(self) -> Json:
        return {"rules": [one.json for one in await self.call("list_rules")]}

    async def do_put_rule(self) -> Json:
        return await self.json("put_rule", self.take("prefix"), self.take("create"))

    async def do_delete_rule(self) -> Json:
        return await self.json("delete_rule", self.take("prefix"))

    async def do_forecast(self) -> Json:
        return await self.json("forecast", self.take("for"), self.take("step"))

    async def do_preview(self) -> Json:
        return await self.json("preview", self.take("cron"), **self.take_all(**{"from": "start"}))

    async def do_lease(self) -> Json:
        self.arguments.setdefault("wait", "0s")
        leased = await self.call("lease", self.take("queue"), **self.take_all())
        return {"deliveries": [one.json for one in leased]}

    async def do_ack(self) -> Json:
        queue, tokens, acks = self.take("queue"), self.take("tokens"), self.take("acks")
        results = None if acks is None else [(ack.pop("token"), ack.pop("result", None)) for ack in acks]
        if any(acks or ()):
            raise Mismatch(f"an ack does not know {acks}")
        return await self.json("ack", queue, tokens, results=results)

    async def do_fail(self) -> Json:
        return await self.json("fail", self.take("queue"), **self.take_all())

    async def do_refuse(self) -> Json:
        return await self.json("refuse", self.take("queue"), **self.take_all())

    async def do_extend(self) -> Json:
        return await self.json("extend", self.take("queue"), **self.take_all())

    async def do_work(self) -> Json:
        queue, outcomes, count = self.take("queue"), self.take("handler"), self.take("count")
        handled: list[Json] = []
        done = threading.Event()
        worker = Worker(self.client, concurrency=1, prefetch=0, dedup=0)

        def outcome(fire: Fire[Any]) -> Any:
            one = dict(outcomes[min(len(handled), len(outcomes) - 1)])
            handled.append(fire.json)
            if len(handled) >= count:
                worker.stop()
                done.set()
            return _behave(one)

        @worker.on(queue)
        async def in_the_loop(fire: Fire[Any]) -> Any:
            return outcome(fire)

        if isinstance(self.base, AsyncClient):
            async with worker:
                finished = await asyncio.to_thread(done.wait, WORK_SECONDS_MAX)
        else:
            with worker:
                finished = done.wait(WORK_SECONDS_MAX)
        if not finished or len(handled) != count:
            raise Mismatch(f"expected {count} deliveries, got {handled!r:.600}")
        return {"handled": handled}

    async def do_verify(self) -> Json:
        headers, body, now = self.take("headers"), self.take("body"), float(self.take("now"))
        try:
            verify(headers, body, self.take("secret"), now=now)
        except SignatureError:
            return {"valid": False}
        return {"valid": True}

    async def do_receiver(self) -> Json:
        self.receivers.append(Receiver(self.take("answers")))
        return {"url": self.receivers[-1].url}

    async def do_received(self) -> Json:
        return {"requests": [one for receiver in self.receivers for one in receiver.requests]}

    async def do_advance(self) -> Json:
        return await self.json("advance_clock", **self.take_all())

    async def do_clock(self) -> Json:
        return await self.json("clock")

    async def do_restart(self) -> None:
        if not isinstance(self.broker, BrokerProcess):
            raise Mismatch("a cluster is not restarted")
        self.broker.restart()

    async def do_kill_leader(self) -> None:
        if not isinstance(self.broker, Cluster):
            raise Mismatch("only a cluster has a leader to kill")
        self.broker.leader().kill()


def _behave(outcome: dict[str, Json]) -> Any:
    """Ends a function of a worker as the scenario says."""
    do, result = outcome.pop("do"), outcome.pop("result", None)
    after, reason = outcome.pop("after", None), outcome.pop("reason", "")
    if outcome or do not in ("ok", "retry", "refuse", "error"):
        raise Mismatch(f"a handler does not know {do} {outcome}")
    if do == "retry":
        raise Retry(after, reason)
    if do == "refuse":
        raise Refuse(reason)
    if do == "error":
        raise RuntimeError(reason)
    return result
