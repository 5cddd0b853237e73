"""Tests with a real broker and a virtual clock: `punctual dev` as a process of its own.

The binary is `PUNCTUAL_BIN`, or `punctual` of the path. The pytest fixture `punctual` gives each test a fresh broker.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ._units import Duration, Instant, instant_json
from .client import Client
from .records import Advanced, Fire

START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 10.0
ANY_PORT = "127.0.0.1:0"
FIRED_MAX = 100_000
"""Deliveries that `fired` takes: a test with more has a loop."""


def binary() -> str:
    """The binary of the broker."""
    found = os.environ.get("PUNCTUAL_BIN") or shutil.which("punctual")
    if not found:
        raise RuntimeError("punctual is not installed: set PUNCTUAL_BIN, or add it to the PATH")
    return found


class BrokerProcess:
    """A process of the broker that prints or logs its address as JSON."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = list(arguments)
        self.directory = Path(tempfile.mkdtemp(prefix="punctual-test-"))
        self.url = ""
        self._lines: list[str] = []
        self._found = threading.Event()
        self.start()

    def start(self) -> None:
        self._found.clear()
        # An empty `PUNCTUAL_…` environment: settings of the developer must not change tests.
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PUNCTUAL_")}
        self.process = subprocess.Popen(
            [binary(), *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env=clean,
        )
        for pipe in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._read, args=(pipe,), daemon=True).start()
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._found.wait(0.05):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("punctual did not start:\n" + "\n".join(self._lines[-20:]))

    def _read(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            text = line.decode("utf-8", "replace").rstrip()
            if len(self._lines) < 1_000:  # the beginning is what explains a failed start
                self._lines.append(text)
            address = _address(text)
            if address is not None and not self._found.is_set():
                self.url = address
                self._found.set()

    def restart(self) -> None:
        """Kills the process, and starts it again on the same directory and port."""
        self.kill()
        self.arguments = [self.url.removeprefix("http://") if one == ANY_PORT else one for one in self.arguments]
        self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _address(line: str) -> str | None:
    """The address in a line of `punctual dev`, or in the line "ready" of the JSON log of `punctual serve`."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("url"), str):
        return str(document["url"]).rstrip("/")
    fields = document.get("fields")
    if isinstance(fields, dict) and fields.get("message") == "ready" and "listen" in fields:
        return f"http://{fields['listen']}"
    return None


class DevBroker:
    """`punctual dev`: a broker in memory whose time moves only when the test says so."""

    def __init__(
        self,
        *,
        clock: Instant | None = None,
        namespace: str = "default",
        args: Sequence[str] = (),
        token: str | None = None,
    ) -> None:
        arguments = ["dev", "--listen", ANY_PORT, *args]
        if clock is not None:
            arguments += ["--clock", str(instant_json(clock))]
        self.process = BrokerProcess(arguments)
        self.client = Client(self.url, namespace=namespace, token=token)

    @property
    def url(self) -> str:
        return self.process.url

    def now(self) -> datetime:
        """The virtual time."""
        return self.client.clock().now

    def advance(
        self,
        by: Duration | None = None,
        *,
        to: Instant | None = None,
        wait: Duration | None = None,
    ) -> Advanced:
        """Moves the time. Returns when everything that became due was delivered."""
        return self.client.advance_clock(by, to=to, wait=wait)

    def fired(self, queue: str, *, namespace: str | None = None) -> list[Fire[Any]]:
        """Takes all deliveries that wait in a queue, acknowledges them, and returns them in order."""
        client = self.client if namespace is None else self.client.with_namespace(namespace)
        fires: list[Fire[Any]] = []
        while len(fires) < FIRED_MAX:
            leased = client.lease(queue, max=1_000, wait="0s")
            if not leased:
                return fires
            client.ack(queue, [fire.token for fire in leased])
            fires += leased
        raise RuntimeError(f"queue {queue!r} has more than {FIRED_MAX} deliveries")

    def close(self) -> None:
        self.client.close()
        self.process.stop()

    def __enter__(self) -> DevBroker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
