"""What tests on brokers share: one broker per module, a namespace per test, and a cluster on a Redis of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from punctual import Client
from punctual.testing import BrokerProcess

WAIT_SECONDS_MAX = 60.0
SERVE = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--allow-private-targets"]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    process = BrokerProcess([*SERVE, "--data-dir", "data"])
    yield process
    process.stop()


@pytest.fixture
def client(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(broker.url, namespace=request.node.name.replace("_", "-")[:60].strip("-")) as client:
        yield client


@dataclass
class Cluster:
    brokers: list[BrokerProcess]

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def leader(self) -> BrokerProcess:
        with Client(self.urls, discover=False) as client:
            leader = client.topology().leader
        return next(broker for broker in self.brokers if broker.url == f"http://{leader}")


def _redis() -> tuple[subprocess.Popen[bytes], str, Path]:
    directory = Path(tempfile.mkdtemp(prefix="punctual-redis-"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", ""]
    command += ["--appendonly", "yes", "--appendfsync", "always"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process, f"redis://127.0.0.1:{port}", directory
        time.sleep(0.05)
    process.kill()
    raise RuntimeError("redis-server did not start")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers on one Redis, once each of them owns partitions."""
    redis, url, directory = _redis()
    started = Cluster([])
    try:
        for _ in range(3):
            started.brokers.append(BrokerProcess([*SERVE, "--redis", url, "--lease", "2s"]))
        with Client(started.urls, discover=False) as client:
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while True:
                topology = client.topology()
                if topology.leader and sum(bool(one.partitions) for one in topology.brokers) == 3:
                    break
                assert time.monotonic() < deadline, f"not three owners: {topology}"
                time.sleep(0.1)
        yield started
    finally:
        for broker in started.brokers:
            broker.stop()
        redis.kill()
        redis.wait()
        shutil.rmtree(directory, ignore_errors=True)
