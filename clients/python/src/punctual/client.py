"""`Client` and `AsyncClient`: two thin transports for the calls of `calls.Calls`.

Both have the same methods with the same arguments. What is sent, how an answer is read and when a call is repeated is
decided in `calls` and `_retry`; this module only moves bytes and waits.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import httpx

from ._retry import Addresses, RetryLimits, Tries
from .calls import Call, Calls, Events, Pages, Response
from .errors import PunctualError, UnreachableError
from .records import Page, Topology

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound="_Connection")

URL_DEFAULT = "http://127.0.0.1:7400"
NAMESPACE_DEFAULT = "default"
# The brokers of a cluster change seldom, and a call that meets a dead one is repeated anyway.
TOPOLOGY_SECONDS = 30.0
# A broker that is there accepts within this time; otherwise the next one is tried.
CONNECT_SECONDS = 3.0
LIVE_SILENCE_SECONDS = 30.0
"""A live stream has an event a second."""


@dataclass(frozen=True)
class Settings:
    """All that a client needs to know to connect."""

    urls: tuple[str, ...]
    namespace: str = NAMESPACE_DEFAULT
    token: str | None = None
    timeout: float = 10.0
    """Seconds without an answer, in addition to the wait that a call asks for."""
    limits: RetryLimits = field(default_factory=RetryLimits)
    discover: bool = True
    """Whether to ask brokers for the other brokers of their cluster."""
    verify: ssl.SSLContext | bool = True
    connections_max: int = 100

    @staticmethod
    def of(url: str | Sequence[str] | None, namespace: str | None, token: str | None, **rest: Any) -> Settings:
        given = url or os.environ.get("PUNCTUAL_URL") or URL_DEFAULT
        urls = given.split(",") if isinstance(given, str) else given
        cleaned = tuple(one.strip().rstrip("/") for one in urls if one.strip())
        for one in cleaned:
            if not one.startswith(("http://", "https://")):
                raise ValueError(f"the address of a broker begins with http:// or https://: {one}")
        if not cleaned:
            raise ValueError("at least one address of a broker is needed")
        return Settings(
            cleaned,
            namespace or os.environ.get("PUNCTUAL_NAMESPACE") or NAMESPACE_DEFAULT,
            token or os.environ.get("PUNCTUAL_TOKEN") or None,
            **rest,
        )

    def http_options(self) -> dict[str, Any]:
        limits = httpx.Limits(
            max_connections=self.connections_max,
            max_keepalive_connections=self.connections_max,
            keepalive_expiry=30.0,
        )
        # Certificates take long to load, and are of no use without TLS. Learned addresses have the scheme of the given.
        verify = self.verify if any(url.startswith("https://") for url in self.urls) else False
        return {"verify": verify, "limits": limits, "follow_redirects": False}


class _Connection:
    """What both clients share: settings, known brokers, and the requests of calls."""

    settings: Settings

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        namespace: str | None = None,
        token: str | None = None,
        settings: Settings | None = None,
        **rest: Any,
    ) -> None:
        """`url` is one address or several; default `PUNCTUAL_URL`, then `http://127.0.0.1:7400`.

        `token` defaults to `PUNCTUAL_TOKEN`, `namespace` to `PUNCTUAL_NAMESPACE`. Further options are the fields of
        `Settings`: `timeout`, `limits`, `discover`, `verify`, `connections_max`.
        """
        self.settings = settings or Settings.of(url, namespace, token, **rest)
        self._addresses = Addresses(self.settings.urls)
        self._topology_at = float("-inf")
        self._open()

    def _open(self) -> None:
        raise NotImplementedError

    @property
    def calls(self) -> Calls:
        return Calls(self.settings.namespace)

    @property
    def brokers(self) -> tuple[str, ...]:
        """The addresses of all brokers that are known, the one that answered last first."""
        return self._addresses.order()

    def _copy(self: C, **changes: Any) -> C:
        """A client with other settings that shares the connections of this one."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.settings = replace(self.settings, **changes)
        if "urls" in changes:
            other._addresses = Addresses(other.settings.urls)
        return other

    def with_namespace(self: C, namespace: str) -> C:
        """A client of another namespace that shares the connections of this one."""
        return self._copy(namespace=namespace)

    def with_token(self: C, token: str | None) -> C:
        """A client with another token that shares the connections of this one."""
        return self._copy(token=token)

    def _tries(self, call: Call[Any]) -> Tries:
        order = self._addresses.order()
        return Tries(call, order, self.settings.limits, time.monotonic(), random.random)

    def _request(self, call: Call[Any], address: str) -> dict[str, Any]:
        headers = {"accept": "application/json", **call.headers}
        if call.body is not None:
            headers["content-type"] = "application/json"
        if self.settings.token is not None:
            headers["authorization"] = f"Bearer {self.settings.token}"
        return {
            "method": call.method,
            "url": address + call.path,
            "headers": headers,
            "content": call.body,
            "timeout": httpx.Timeout(self.settings.timeout + call.wait, connect=CONNECT_SECONDS),
        }

    def _wants_topology(self) -> bool:
        if not self.settings.discover:
            return False
        now = time.monotonic()
        due = now - self._topology_at >= TOPOLOGY_SECONDS
        if due:
            self._topology_at = now
        return due

    def _learn(self, topology: Topology) -> None:
        self._addresses.learn([broker.address for broker in topology.brokers])


def _response(answer: httpx.Response) -> Response:
    return Response(answer.status_code, answer.headers, answer.content)


def _sent(error: httpx.HTTPError) -> bool:
    """Whether a broker may have received the request."""
    return not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)


def _reason(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


class SyncPages(Generic[T]):
    """A list that reads its pages while it is iterated."""

    def __init__(self, client: Client, pages: Pages[T]) -> None:
        self._client = client
        self._pages = pages

    def pages(self) -> Iterator[Page[T]]:
        cursor = None
        while True:
            page = self._client.send(self._pages.page(cursor))
            yield page
            cursor = page.next
            if cursor is None:
                return

    def __iter__(self) -> Iterator[T]:
        for page in self.pages():
            yield from page.items


class AsyncPages(Generic[T]):
    """A list that reads its pages while it is iterated with `async for`."""

    def __init__(self, client: AsyncClient, pages: Pages[T]) -> None:
        self._client = client
        self._pages = pages

    async def pages(self) -> AsyncIterator[Page[T]]:
        cursor = None
        while True:
            page = await self._client.send(self._pages.page(cursor))
            yield page
            cursor = page.next
            if cursor is None:
                return

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item


def _sync(
    build: Callable[Concatenate[Calls, P], Call[T]],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.send(build(self.calls, *args, **kwargs))

    return method


def _sync_pages(
    build: Callable[Concatenate[Calls, P], Pages[T]],
) -> Callable[Concatenate[Client, P], SyncPages[T]]:
    @functools.wraps(build)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> SyncPages[T]:
        return SyncPages(self, build(self.calls, *args, **kwargs))

    return method


def _sync_events(build: Callable[[Calls], Events[T]]) -> Callable[[Client], Iterator[T]]:
    @functools.wraps(build)
    def method(self: Client) -> Iterator[T]:
        return self.stream(build(self.calls))

    return method


def _async(
    build: Callable[Concatenate[Calls, P], Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    @functools.wraps(build)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.send(build(self.calls, *args, **kwargs))

    return method


def _async_pages(
    build: Callable[Concatenate[Calls, P], Pages[T]],
) -> Callable[Concatenate[AsyncClient, P], AsyncPages[T]]:
    @functools.wraps(build)
    def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncPages[T]:
        return AsyncPages(self, build(self.calls, *args, **kwargs))

    return method


def _async_events(
    build: Callable[[Calls], Events[T]],
) -> Callable[[AsyncClient], AsyncIterator[T]]:
    @functools.wraps(build)
    def method(self: AsyncClient) -> AsyncIterator[T]:
        return self.stream(build(self.calls))

    return method


class Client(_Connection):
    """A client for programs without an event loop. It can be shared by threads, and is a context manager."""

    _http: httpx.Client

    def _open(self) -> None:
        self._http = httpx.Client(**self.settings.http_options())

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, call: Call[T]) -> T:
        """Sends a call to the first broker that carries it out."""
        tries = self._tries(call)
        while True:
            address = tries.address
            pause: float | None
            try:
                response = _response(self._http.request(**self._request(call, address)))
            except httpx.TransportError as error:
                pause = tries.broken(_reason(error), _sent(error), time.monotonic())
            else:
                pause = tries.answered(response, time.monotonic())
                if pause is None:
                    self._addresses.answered(address)
                    self._discover(address)
                    return call.finish(response)
            time.sleep(pause)

    def _discover(self, address: str) -> None:
        if self._wants_topology():
            call = self.calls.topology()
            try:
                response = _response(self._http.request(**self._request(call, address)))
                self._learn(call.finish(response))
            except (httpx.TransportError, PunctualError):
                return

    def stream(self, events: Events[T]) -> Iterator[T]:
        """The events of a stream until it ends."""
        call: Call[None] = Call("GET", events.path, lambda _: None)
        request = self._request(call, self._addresses.order()[0])
        request["timeout"] = httpx.Timeout(LIVE_SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            with self._http.stream(**request) as answer:
                if answer.status_code != 200:
                    answer.read()
                    call.finish(_response(answer))
                for line in answer.iter_lines():
                    event = events.parse(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as error:
            raise UnreachableError(f"the stream broke: {_reason(error)}") from error

    schedule = _sync(Calls.schedule)
    schedule_minimal = _sync(Calls.schedule_minimal)
    schedule_many = _sync(Calls.schedule_many)
    get = _sync(Calls.get)
    cancel = _sync(Calls.cancel)
    cancel_many = _sync(Calls.cancel_many)
    touch = _sync(Calls.touch)
    touch_minimal = _sync(Calls.touch_minimal)
    touch_many = _sync(Calls.touch_many)
    list_rules = _sync(Calls.list_rules)
    put_rule = _sync(Calls.put_rule)
    delete_rule = _sync(Calls.delete_rule)
    pause = _sync(Calls.pause)
    resume = _sync(Calls.resume)
    fire = _sync(Calls.fire)
    explain = _sync(Calls.explain)
    list = _sync_pages(Calls.tasks)
    history = _sync(Calls.history)
    fires = _sync_pages(Calls.fires)
    dead = _sync_pages(Calls.dead)
    dead_groups = _sync(Calls.dead_groups)
    redrive = _sync(Calls.redrive)
    delete_dead = _sync(Calls.delete_dead)
    delete_dead_many = _sync(Calls.delete_dead_many)
    stats = _sync(Calls.stats)
    forecast = _sync(Calls.forecast)
    series = _sync(Calls.series)
    live = _sync_events(Calls.live)
    live_all = _sync_events(Calls.live_all)
    preview = _sync(Calls.preview)
    start_operation = _sync(Calls.start_operation)
    dry_run = _sync(Calls.dry_run)
    operation = _sync(Calls.operation)
    stop_operation = _sync(Calls.stop_operation)
    operations = _sync(Calls.operations)
    actions = _sync(Calls.actions)
    put_alarm = _sync(Calls.put_alarm)
    alarm = _sync(Calls.alarm)
    alarms = _sync(Calls.alarms)
    delete_alarm = _sync(Calls.delete_alarm)
    test_alarm = _sync(Calls.test_alarm)
    lease = _sync(Calls.lease)
    ack = _sync(Calls.ack)
    fail = _sync(Calls.fail)
    refuse = _sync(Calls.refuse)
    extend = _sync(Calls.extend)
    queues = _sync(Calls.queues)
    lanes = _sync(Calls.lanes)
    workers = _sync(Calls.workers)
    namespaces = _sync_pages(Calls.namespaces)
    topology = _sync(Calls.topology)
    whoami = _sync(Calls.whoami)
    connections = _sync(Calls.connections)
    test_connection = _sync(Calls.test_connection)
    livez = _sync(Calls.livez)
    readyz = _sync(Calls.readyz)
    metrics = _sync(Calls.metrics)
    openapi = _sync(Calls.openapi)
    clock = _sync(Calls.clock)
    advance_clock = _sync(Calls.advance_clock)
    run_clock = _sync(Calls.run_clock)
    freeze_clock = _sync(Calls.freeze_clock)


class AsyncClient(_Connection):
    """A client for asyncio. It belongs to one event loop, and is an async context manager."""

    _http: httpx.AsyncClient

    def _open(self) -> None:
        self._http = httpx.AsyncClient(**self.settings.http_options())

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(self, call: Call[T]) -> T:
        """Sends a call to the first broker that carries it out."""
        tries = self._tries(call)
        while True:
            address = tries.address
            pause: float | None
            try:
                response = _response(await self._http.request(**self._request(call, address)))
            except httpx.TransportError as error:
                pause = tries.broken(_reason(error), _sent(error), time.monotonic())
            else:
                pause = tries.answered(response, time.monotonic())
                if pause is None:
                    self._addresses.answered(address)
                    await self._discover(address)
                    return call.finish(response)
            await asyncio.sleep(pause)

    async def _discover(self, address: str) -> None:
        if self._wants_topology():
            call = self.calls.topology()
            try:
                response = _response(await self._http.request(**self._request(call, address)))
                self._learn(call.finish(response))
            except (httpx.TransportError, PunctualError):
                return

    async def stream(self, events: Events[T]) -> AsyncIterator[T]:
        """The events of a stream until it ends."""
        call: Call[None] = Call("GET", events.path, lambda _: None)
        request = self._request(call, self._addresses.order()[0])
        request["timeout"] = httpx.Timeout(LIVE_SILENCE_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with self._http.stream(**request) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    call.finish(_response(answer))
                async for line in answer.aiter_lines():
                    event = events.parse(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as error:
            raise UnreachableError(f"the stream broke: {_reason(error)}") from error

    schedule = _async(Calls.schedule)
    schedule_minimal = _async(Calls.schedule_minimal)
    schedule_many = _async(Calls.schedule_many)
    get = _async(Calls.get)
    cancel = _async(Calls.cancel)
    cancel_many = _async(Calls.cancel_many)
    touch = _async(Calls.touch)
    touch_minimal = _async(Calls.touch_minimal)
    touch_many = _async(Calls.touch_many)
    list_rules = _async(Calls.list_rules)
    put_rule = _async(Calls.put_rule)
    delete_rule = _async(Calls.delete_rule)
    pause = _async(Calls.pause)
    resume = _async(Calls.resume)
    fire = _async(Calls.fire)
    explain = _async(Calls.explain)
    list = _async_pages(Calls.tasks)
    history = _async(Calls.history)
    fires = _async_pages(Calls.fires)
    dead = _async_pages(Calls.dead)
    dead_groups = _async(Calls.dead_groups)
    redrive = _async(Calls.redrive)
    delete_dead = _async(Calls.delete_dead)
    delete_dead_many = _async(Calls.delete_dead_many)
    stats = _async(Calls.stats)
    forecast = _async(Calls.forecast)
    series = _async(Calls.series)
    live = _async_events(Calls.live)
    live_all = _async_events(Calls.live_all)
    preview = _async(Calls.preview)
    start_operation = _async(Calls.start_operation)
    dry_run = _async(Calls.dry_run)
    operation = _async(Calls.operation)
    stop_operation = _async(Calls.stop_operation)
    operations = _async(Calls.operations)
    actions = _async(Calls.actions)
    put_alarm = _async(Calls.put_alarm)
    alarm = _async(Calls.alarm)
    alarms = _async(Calls.alarms)
    delete_alarm = _async(Calls.delete_alarm)
    test_alarm = _async(Calls.test_alarm)
    lease = _async(Calls.lease)
    ack = _async(Calls.ack)
    fail = _async(Calls.fail)
    refuse = _async(Calls.refuse)
    extend = _async(Calls.extend)
    queues = _async(Calls.queues)
    lanes = _async(Calls.lanes)
    workers = _async(Calls.workers)
    namespaces = _async_pages(Calls.namespaces)
    topology = _async(Calls.topology)
    whoami = _async(Calls.whoami)
    connections = _async(Calls.connections)
    test_connection = _async(Calls.test_connection)
    livez = _async(Calls.livez)
    readyz = _async(Calls.readyz)
    metrics = _async(Calls.metrics)
    openapi = _async(Calls.openapi)
    clock = _async(Calls.clock)
    advance_clock = _async(Calls.advance_clock)
    run_clock = _async(Calls.run_clock)
    freeze_clock = _async(Calls.freeze_clock)
