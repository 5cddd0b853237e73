"""Touch buffers: many heartbeats become few calls.

A key that is touched several times before a flush is sent once. A buffer flushes when it has `size` keys, each
`every` seconds, and when it is closed. It is bounded: when it is full, `touch` flushes before it returns. If a flush
fails, its keys stay in the buffer and are sent with the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from ._units import Duration, seconds
from .calls import ENTRIES_MAX
from .client import AsyncClient, Client
from .errors import PunctualError
from .records import Touched
from .targets import TaskLike

log = logging.getLogger("punctual.touches")

PENDING_MAX = 100_000
"""Keys in a buffer. A caller that is faster than the broker waits at this bound."""


class _Pending:
    """The keys that wait for a flush, in the order of their first touch."""

    def __init__(self, size: int, pending_max: int) -> None:
        if not 1 <= size <= ENTRIES_MAX:
            raise ValueError(f"size is from 1 to {ENTRIES_MAX}")
        self._keys: dict[str, None] = {}
        self._size = size
        self._pending_max = max(size, pending_max)

    def add(self, key: str) -> None:
        self._keys[key] = None

    @property
    def due(self) -> bool:
        return len(self._keys) >= self._size

    @property
    def full(self) -> bool:
        return len(self._keys) >= self._pending_max

    def __len__(self) -> int:
        return len(self._keys)

    def take(self) -> list[str]:
        batch = list(self._keys)[: self._size]
        for key in batch:
            del self._keys[key]
        return batch

    def put_back(self, batch: list[str]) -> None:
        self._keys = {**dict.fromkeys(batch), **self._keys}


class TouchBuffer:
    """Collects touches, and sends them from a thread of its own. Can be shared by threads."""

    def __init__(
        self,
        client: Client,
        *,
        create: TaskLike | None = None,
        every: Duration = "1s",
        size: int = 1_000,
        pending_max: int = PENDING_MAX,
        on_flush: Callable[[Touched], None] | None = None,
    ) -> None:
        self._client = client
        self._create = create
        self._every = seconds(every)
        self._on_flush = on_flush
        self._pending = _Pending(size, pending_max)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="punctual-touches", daemon=True)
        self._thread.start()

    def touch(self, key: str) -> None:
        """Touches a key with the next flush. Raises if the buffer is full and cannot be flushed."""
        if self._closed:
            raise RuntimeError("the touch buffer is closed")
        with self._lock:
            self._pending.add(key)
            due, full = self._pending.due, self._pending.full
        if full:
            self.flush()
        elif due:
            self._wake.set()

    def flush(self) -> None:
        """Sends everything that waits."""
        with self._sending:
            while True:
                with self._lock:
                    batch = self._pending.take()
                if not batch:
                    return
                try:
                    touched = self._client.touch_many(batch, create=self._create)
                except BaseException:
                    with self._lock:
                        self._pending.put_back(batch)
                    raise
                if self._on_flush is not None:
                    self._on_flush(touched)

    def close(self) -> None:
        """Sends everything that waits, and ends the thread. Raises if it cannot be sent."""
        self._closed = True
        self._wake.set()
        self._thread.join()
        self.flush()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._every)
            self._wake.clear()
            if self._closed:
                return
            try:
                self.flush()
            except PunctualError as error:
                log.warning("touches not sent pending=%d error=%s", len(self._pending), error)

    def __enter__(self) -> TouchBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncTouchBuffer:
    """Collects touches, and sends them from a task of the running event loop."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        create: TaskLike | None = None,
        every: Duration = "1s",
        size: int = 1_000,
        pending_max: int = PENDING_MAX,
        on_flush: Callable[[Touched], None] | None = None,
    ) -> None:
        self._client = client
        self._create = create
        self._every = seconds(every)
        self._on_flush = on_flush
        self._pending = _Pending(size, pending_max)
        self._sending = asyncio.Lock()
        self._wake = asyncio.Event()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    async def touch(self, key: str) -> None:
        """Touches a key with the next flush. Raises if the buffer is full and cannot be flushed."""
        if self._closed:
            raise RuntimeError("the touch buffer is closed")
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._pending.add(key)
        if self._pending.full:
            await self.flush()
        elif self._pending.due:
            self._wake.set()

    async def flush(self) -> None:
        """Sends everything that waits."""
        async with self._sending:
            while batch := self._pending.take():
                try:
                    touched = await self._client.touch_many(batch, create=self._create)
                except BaseException:
                    self._pending.put_back(batch)
                    raise
                if self._on_flush is not None:
                    self._on_flush(touched)

    async def close(self) -> None:
        """Sends everything that waits, and ends the task. Raises if it cannot be sent."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await self._task
        await self.flush()

    async def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._every)
            self._wake.clear()
            if self._closed:
                return
            try:
                await self.flush()
            except PunctualError as error:
                log.warning("touches not sent pending=%d error=%s", len(self._pending), error)

    async def __aenter__(self) -> AsyncTouchBuffer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
