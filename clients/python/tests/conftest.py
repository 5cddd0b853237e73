"""What tests on brokers share: one broker per module, a namespace per test, and a cluster on a Redis of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from punctual import Client
from punctual.testing import BrokerProcess

from .cluster import SERVE, Cluster

WAIT_SECONDS_MAX = 60.0


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


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three brokers on one Redis, once each of them owns partitions."""
    started = Cluster()
    yield started
    started.stop()
