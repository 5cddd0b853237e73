"""Workers: functions that receive the deliveries of queues.

A worker polls every broker of the cluster, holds at most `concurrency + prefetch` deliveries over all of them, extends
their leases while functions run, and acknowledges in batches. A delivery that comes again although its function
succeeded before is acknowledged without a second call, as long as its fire id is remembered. `stop()`, SIGTERM and
SIGINT end it gracefully: it takes nothing new, finishes what it holds, and then returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import random
import signal
import socket
import threading
import typing
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ._payload import PayloadError, convert, plain
from ._retry import RetryLimits
from ._units import Duration, duration_text, seconds
from .client import AsyncClient, Client
from .errors import ProblemError, PunctualError, Refuse, Retry
from .records import Fire

log = logging.getLogger("punctual.worker")
F = TypeVar("F", bound=Callable[..., Any])

LEASE_MAX = 1_000
"""Deliveries of one poll: the limit of the broker."""
ACK_MAX = 1_000
"""Acks of one request. More would delay the first of them for no gain."""
REASON_CHARS_MAX = 500
"""Enough for an error message; the history keeps reasons of all attempts."""
NAME_BYTES_MAX = 128
"""The limit of the broker."""
TOPOLOGY_SECONDS = 5.0
PAUSE_FIRST, PAUSE_MAX = 0.1, 2.0
LINGER_SECONDS = 0.005
"""How long a poll waits for more room when there is little. Short beside the way to a broker and back."""
LAST_POLL_SECONDS = 0.25
"""How long polls may take to end by themselves when the worker stops: a poll that has deliveries answers at once."""
EXTEND_SHARE = 0.5
"""A lease is extended when this share of it is over, which leaves as much time for further tries."""


@dataclass(frozen=True)
class _Route:
    """A function, the keys that it receives and the type of its payload."""

    function: Callable[..., Any]
    prefix: str
    payload: Any
    is_async: bool


@dataclass(eq=False)
class _Held:
    """A delivery that this worker has leased and not settled yet."""

    queue: str
    fire: Fire[Any]
    settled: bool = False


class _Outcome(NamedTuple):
    """What became of a delivery, and how it is settled."""

    settle: Literal["ack", "fail", "refuse"]
    result: Any = None
    reason: str = ""
    after: Duration | None = None


@dataclass(eq=False)
class _Acks:
    """Deliveries of one queue that succeeded, with their results, until the next ack request."""

    waiting: deque[tuple[_Held, Any]] = field(default_factory=deque)
    running: bool = False


class _Memory:
    """Fire ids of deliveries whose function has succeeded, with the results. The oldest are forgotten."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._done: OrderedDict[str, Any] = OrderedDict()

    def __contains__(self, fire_id: str) -> bool:
        return fire_id in self._done

    def result(self, fire_id: str) -> Any:
        return self._done[fire_id]

    def add(self, fire_id: str, result: Any) -> None:
        if self._size == 0:
            return
        self._done[fire_id] = result
        while len(self._done) > self._size:
            self._done.popitem(last=False)


class Worker:
    """Receives deliveries of queues.

    `concurrency` functions run at once; `prefetch` further deliveries wait in memory (default: as many). `lease` is how
    long a broker waits for a worker that died. `dedup` is how many fire ids are remembered, 0 for none. `grace` is how
    long `stop` waits for functions that run. `name` is shown by `workers()`.
    """

    def __init__(
        self,
        client: Client | AsyncClient,
        *,
        concurrency: int = 10,
        prefetch: int | None = None,
        name: str | None = None,
        lease: Duration = "30s",
        wait: Duration = "20s",
        dedup: int = 10_000,
        grace: Duration = "30s",
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        self._settings = client.settings
        self._concurrency = concurrency
        self._capacity = concurrency + (concurrency if prefetch is None else prefetch)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        if len(self.name.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"the name of a worker has at most {NAME_BYTES_MAX} bytes")
        self._lease = duration_text(lease)
        self._wait = seconds(wait)
        self._grace = seconds(grace)
        self._memory = _Memory(dedup)
        self._routes: dict[str, list[_Route]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._main: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._inside: set[int] = set()

    def _note_thread(self) -> None:
        """Called by each thread of functions: `stop()` in one of them cannot wait for itself."""
        self._inside.add(threading.get_ident())

    # Registration

    def on(self, queue: str, *, prefix: str = "", payload: Any = None) -> Callable[[F], F]:
        """Registers a function, `def` or `async def`, for the deliveries of a queue.

        With `prefix` it receives those whose key begins with it; the longest prefix wins. The type of the payload is
        the `X` of a parameter `Fire[X]`, or `payload`.
        """

        def register(function: F) -> F:
            routes = self._routes.setdefault(queue, [])
            if any(route.prefix == prefix for route in routes):
                raise ValueError(f"queue {queue!r} has a function for the prefix {prefix!r}")
            wanted = _payload_type(function) if payload is None else payload
            is_async = inspect.iscoroutinefunction(function)
            routes.append(_Route(function, prefix, wanted, is_async))
            routes.sort(key=lambda route: len(route.prefix), reverse=True)
            return function

        return register

    # Running

    def run(self) -> None:
        """Works until `stop()`, SIGTERM or SIGINT. A second signal cancels the functions that run."""
        asyncio.run(self._run(signals=threading.current_thread() is threading.main_thread()))

    def start(self) -> Worker:
        """Works in a thread of its own until `stop()`."""
        if self._thread is not None:
            raise RuntimeError("the worker runs already")
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(started=started)), name="punctual-worker")
        self._thread.start()
        started.wait()
        return self

    @property
    def running(self) -> bool:
        """Whether the worker takes or finishes deliveries."""
        return self._loop is not None

    def stop(self) -> None:
        """Takes nothing new and finishes what is held. Thread-safe.

        After `start()` it waits for the end, unless a function of the worker calls it.
        """
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(stop.set)
        inside = threading.get_ident() in self._inside or threading.current_thread() is self._thread
        if self._thread is not None and not inside:
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Worker:
        self._main = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stop is not None:
            self._stop.set()
        if self._main is not None:
            await self._main

    async def _run(self, *, signals: bool = False, started: threading.Event | None = None) -> None:
        if not self._routes:
            if started is not None:
                started.set()
            raise ValueError("the worker has no function: register one with @worker.on(queue)")
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        run = _Run(self, self._stop)
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(number, run.signalled)
        if started is not None:
            started.set()
        try:
            await run.work()
        finally:
            if signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    self._loop.remove_signal_handler(number)
            self._loop = self._stop = None


def _payload_type(function: Callable[..., Any]) -> Any:
    """The `X` of the first parameter `Fire[X]`; anything without one."""
    parameters = list(inspect.signature(function).parameters)
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise TypeError(
            f"the annotation of {function.__qualname__} cannot be read ({error}): "
            "define its types at module level, or give `payload=`"
        ) from error
    arguments = typing.get_args(hints.get(parameters[0])) if parameters else ()
    return arguments[0] if arguments else Any


class _Run:
    """One run of a worker, in one event loop."""

    def __init__(self, worker: Worker, stop: asyncio.Event) -> None:
        self._worker = worker
        self._stop = stop
        self._client = AsyncClient(settings=worker._settings)
        self._free = worker._capacity
        self._freed = asyncio.Event()
        self._threads = ThreadPoolExecutor(worker._concurrency, "punctual-worker", worker._note_thread)
        self._polls: dict[str, list[asyncio.Task[None]]] = {}
        self._ready: deque[_Held] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        self._running: dict[str, list[_Held]] = {}
        self._acks: dict[str, _Acks] = {queue: _Acks() for queue in worker._routes}

    def signalled(self) -> None:
        if self._stop.is_set():
            for task in self._runners:
                task.cancel()
        self._stop.set()

    async def work(self) -> None:
        brokers = asyncio.create_task(self._follow_brokers())
        try:
            await self._stop.wait()
        finally:
            brokers.cancel()
            polls = [poll for polls in self._polls.values() for poll in polls]
            if polls:
                # What a broker has handed out already is on its way, and would be delivered again after its lease.
                await asyncio.wait(polls, timeout=LAST_POLL_SECONDS)
            for poll in polls:
                poll.cancel()
            await asyncio.gather(brokers, *polls, return_exceptions=True)
            await self._drain()
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._client.close()

    async def _drain(self) -> None:
        if self._runners:
            _, late = await asyncio.wait(self._runners, timeout=self._worker._grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for held in self._ready:
            self._in_background(self._settle(held, _Outcome("fail", reason="the worker stopped", after="0s")))
        if self._background:
            await asyncio.wait(self._background, timeout=self._worker._grace)
        for task in self._background:
            task.cancel()

    # Brokers and polls

    async def _follow_brokers(self) -> None:
        """Keeps one poll per broker and queue, while brokers come and go."""
        while True:
            brokers = await self._brokers()
            for identity in [one for one in self._polls if one not in brokers]:
                for poll in self._polls.pop(identity):
                    poll.cancel()
            for identity, address in brokers.items():
                if identity not in self._polls:
                    self._polls[identity] = [
                        asyncio.create_task(self._poll(queue, address)) for queue in self._worker._routes
                    ]
            await asyncio.sleep(TOPOLOGY_SECONDS if brokers else PAUSE_FIRST)

    async def _brokers(self) -> dict[str, str]:
        """Brokers by the address that they advertise, with the address to use.

        An address that the program gave is preferred for its broker, because it is known to be reachable from here.
        """
        found: dict[str, str] = {}
        known: list[str] = []
        scheme = urlsplit(self._worker._settings.urls[0]).scheme
        try:
            if self._worker._settings.discover:
                topology = await self._client.topology()
                self._client._learn(topology)
                known = [broker.address for broker in topology.brokers]
        except PunctualError as error:
            log.warning("topology not read error=%s", error)
            return dict.fromkeys(self._polls, "")  # keep the polls as they are
        for url in self._worker._settings.urls:
            try:
                found[(await self._only(url).whoami()).broker] = url
            except ProblemError:
                found[url] = url  # it answers, though not this call
            except PunctualError:
                continue
        for address in known:
            found.setdefault(address, f"{scheme}://{address}")
        return found

    def _only(self, url: str) -> AsyncClient:
        """A client of one broker that tries once: the polls have their own pauses."""
        once = RetryLimits(tries_max=1)
        return self._client._copy(urls=(url,), limits=once, discover=False)

    async def _poll(self, queue: str, address: str) -> None:
        source = self._only(address)
        pause = PAUSE_FIRST
        while not self._stop.is_set():
            count = await self._reserve()
            leased = 0
            try:
                if self._stop.is_set():
                    return
                fires = await source.lease(
                    queue,
                    max=count,
                    wait=f"{int(self._poll_wait() * 1000)}ms",
                    lease=self._worker._lease,
                    worker=self._worker.name,
                )
                leased = len(fires)
                pause = PAUSE_FIRST
                if fires:
                    self._accept([_Held(queue, fire) for fire in fires])
            except PunctualError as error:
                log.warning("poll failed broker=%s queue=%s error=%s", address, queue, error)
                await asyncio.sleep(pause * (0.5 + random.random() / 2))
                pause = min(pause * 2, PAUSE_MAX)
            finally:
                self._release(count - leased)

    def _poll_wait(self) -> float:
        """With fewer deliveries to hold than polls, polls take turns and must not hold their turn for long."""
        polls = sum(len(polls) for polls in self._polls.values())
        return self._worker._wait if self._worker._capacity >= polls else min(1.0, self._worker._wait)

    async def _reserve(self) -> int:
        """Reserves what this poll may receive: its share of what the worker may hold."""
        polls = max(1, sum(len(polls) for polls in self._polls.values()))
        share = min(max(1, self._worker._capacity // polls), LEASE_MAX)
        while self._free <= 0:
            await self._wait_for_free()
        if self._free < share // 2:
            # Functions that end in this moment free more: one request for all of them.
            await asyncio.sleep(LINGER_SECONDS)
            while self._free <= 0:
                await self._wait_for_free()
        count = min(self._free, share)
        self._free -= count
        return count

    async def _wait_for_free(self) -> None:
        self._freed.clear()
        await self._freed.wait()

    def _release(self, count: int) -> None:
        if count > 0:
            self._free += count
            self._freed.set()

    # Deliveries

    def _accept(self, batch: list[_Held]) -> None:
        self._extend_later(batch, batch[0].fire.lease.total_seconds())
        self._ready.extend(batch)
        for _ in range(min(len(batch), self._worker._concurrency - len(self._runners))):
            runner = asyncio.create_task(self._run_ready())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run_ready(self) -> None:
        """Runs functions while deliveries are ready. There are at most `concurrency` of these at once."""
        while self._ready:
            await self._handle(self._ready.popleft())

    async def _handle(self, held: _Held) -> None:
        """Calls the function, unless it has succeeded before or runs right now for the same fire."""
        fire_id = held.fire.fire_id
        if fire_id in self._running:
            self._running[fire_id].append(held)  # settled like the one that runs
            return
        same = self._running[fire_id] = [held]
        memory = self._worker._memory
        outcome = _Outcome("fail", reason="the worker stopped", after="0s")
        try:
            if fire_id in memory:
                outcome = _Outcome("ack", memory.result(fire_id))
            else:
                outcome = await self._call(held)
        finally:
            del self._running[fire_id]
            for one in same:
                if outcome.settle == "ack":
                    self._ack(one, outcome.result)
                else:
                    self._in_background(self._settle(one, outcome))

    async def _call(self, held: _Held) -> _Outcome:
        fire = held.fire
        try:
            route = self._route(held)
            typed = fire
            if route.payload is not Any:
                typed = fire.with_payload(convert(fire.payload, route.payload))
            if route.is_async:
                result = await route.function(typed)
            else:
                loop = asyncio.get_running_loop()
                result = await loop.run_in_executor(self._threads, route.function, typed)
        except Retry as retry:
            return _Outcome("fail", reason=retry.reason, after=retry.after)
        except Refuse as refuse:
            return _Outcome("refuse", reason=refuse.reason)
        except PayloadError as error:
            return _Outcome("refuse", reason=str(error))
        except Exception as error:
            log.warning("function failed queue=%s key=%s", held.queue, fire.key, exc_info=True)
            return _Outcome("fail", reason=f"{type(error).__name__}: {error}")
        try:
            result = plain(result)
        except TypeError as error:
            # The effect has happened: a retry would repeat it.
            log.error("result not kept queue=%s key=%s error=%s", held.queue, fire.key, error)
            result = None
        self._worker._memory.add(fire.fire_id, result)
        return _Outcome("ack", result)

    def _route(self, held: _Held) -> _Route:
        key = held.fire.key or ""
        for route in self._worker._routes[held.queue]:
            if key.startswith(route.prefix):
                return route
        raise Retry(reason=f"no function of worker {self._worker.name} takes the key {key!r}")

    # Settling

    async def _settle(self, held: _Held, outcome: _Outcome) -> None:
        queue, token, reason = held.queue, held.fire.token, outcome.reason[:REASON_CHARS_MAX]
        try:
            if outcome.settle == "fail":
                answer = await self._client.fail(queue, token, reason, retry_in=outcome.after)
            else:
                answer = await self._client.refuse(queue, token, reason)
        except PunctualError as error:
            log.warning("not settled queue=%s fire=%s error=%s", queue, held.fire.fire_id, error)
        else:
            if answer.result == "stale":
                log.warning("settled too late queue=%s fire=%s", queue, held.fire.fire_id)
        finally:
            held.settled = True
            self._release(1)

    def _ack(self, held: _Held, result: Any) -> None:
        acks = self._acks[held.queue]
        acks.waiting.append((held, result))
        if not acks.running:
            acks.running = True
            self._in_background(self._send_acks(held.queue, acks))

    async def _send_acks(self, queue: str, acks: _Acks) -> None:
        """Sends acks while there are any; those that come meanwhile are the next batch."""
        try:
            await asyncio.sleep(0)  # functions that end in this turn of the loop share a request
            while acks.waiting:
                batch = [acks.waiting.popleft() for _ in range(min(ACK_MAX, len(acks.waiting)))]
                try:
                    await self._send_batch(queue, batch)
                except PunctualError as error:
                    log.warning("not acked queue=%s count=%d error=%s", queue, len(batch), error)
                finally:
                    for held, _ in batch:
                        held.settled = True
                    self._release(len(batch))
        finally:
            acks.running = False

    async def _send_batch(self, queue: str, batch: list[tuple[_Held, Any]]) -> None:
        answers = await self._client.ack(
            queue,
            [held.fire.token for held, result in batch if result is None] or None,
            results=[(held.fire.token, result) for held, result in batch if result is not None] or None,
        )
        rejected = []
        for answer in answers.json["results"]:
            if answer["result"] == "stale":
                log.warning("acked too late queue=%s token=%s", queue, answer["token"])
            elif answer["result"] == "rejected":
                detail = (answer.get("problem") or {}).get("detail")
                log.error("result not kept queue=%s error=%s", queue, detail)
                rejected.append(answer["token"])
        if rejected:
            await self._client.ack(queue, rejected)

    # Leases

    def _extend_later(self, batch: list[_Held], lease: float) -> None:
        """Extends the leases of what is left of a batch, before they end."""

        def due() -> None:
            left = [held for held in batch if not held.settled]
            if left:
                for held in left:
                    self._in_background(self._extend(held))
                self._extend_later(left, lease)

        asyncio.get_running_loop().call_later(lease * EXTEND_SHARE, due)

    async def _extend(self, held: _Held) -> None:
        try:
            answer = await self._client.extend(held.queue, held.fire.token, self._worker._lease)
        except PunctualError as error:
            log.warning("lease not extended fire=%s error=%s", held.fire.fire_id, error)
        else:
            if answer.result == "stale" and not held.settled:
                held.settled = True  # nothing is left to extend; the function still runs to its end
                log.warning("lease lost queue=%s fire=%s", held.queue, held.fire.fire_id)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
