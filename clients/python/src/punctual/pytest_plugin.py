"""The pytest fixture `punctual`: a fresh broker with a virtual clock for each test.

`PUNCTUAL_URL` and `PUNCTUAL_NAMESPACE` point to it during the test, so code under test that makes its own `Client()`
finds it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .testing import DevBroker


@pytest.fixture
def punctual(monkeypatch: pytest.MonkeyPatch) -> Iterator[DevBroker]:
    """A real broker (`PUNCTUAL_BIN`, or `punctual` of the path) whose time moves by `punctual.advance("15m")`."""
    with DevBroker() as broker:
        monkeypatch.setenv("PUNCTUAL_URL", broker.url)
        monkeypatch.setenv("PUNCTUAL_NAMESPACE", broker.client.settings.namespace)
        yield broker
