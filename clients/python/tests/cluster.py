"""Three brokers on a Redis of their own, for tests in which the leader is killed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from punctual import Client
from punctual.testing import BrokerProcess

START_SECONDS_MAX = 60.0
SERVE = ["serve", "--listen", "127.0.0.1:0", "--log-format", "json", "--allow-private-targets"]


def _until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {START_SECONDS_MAX:.0f} s: {what}")
        time.sleep(0.05)


class Cluster:
    """Started once each broker owns partitions."""

    def __init__(self) -> None:
        self.brokers: list[BrokerProcess] = []
        self._directory = Path(tempfile.mkdtemp(prefix="punctual-redis-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(self._directory), "--appendonly", "yes", "--appendfsync", "always"]
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _until("Redis listens", lambda: _listens(port))
            for _ in range(3):
                self.brokers.append(BrokerProcess([*SERVE, "--redis", f"redis://127.0.0.1:{port}", "--lease", "2s"]))
            _until("three brokers own partitions", self._whole)
        except BaseException:
            self.stop()
            raise

    def _whole(self) -> bool:
        with Client(self.urls, discover=False) as client:
            topology = client.topology()
        return bool(topology.leader) and sum(bool(one.partitions) for one in topology.brokers) == 3

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers]

    def leader(self) -> BrokerProcess:
        with Client(self.urls, discover=False) as client:
            leader = client.topology().leader
        return next(broker for broker in self.brokers if broker.url == f"http://{leader}")

    def stop(self) -> None:
        for broker in self.brokers:
            broker.stop()
        self._redis.kill()
        self._redis.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
