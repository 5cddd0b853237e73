"""The examples of `docs/sdks/python.md`, executed against a broker."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook as Reference

from punctual import Client, Queue
from punctual.testing import DevBroker

from .conftest import wait_until

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sdks" / "python.md"
EXAMPLES = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def _run(name: str, directory: Path) -> dict[str, Any]:
    file = directory / f"{name}_example.py"
    file.write_text(EXAMPLES[name])
    return runpy.run_path(str(file))


def _shop(broker: DevBroker) -> Client:
    return broker.client.with_namespace("shop")


@pytest.fixture(autouse=True)
def _namespace_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUNCTUAL_TOKEN", raising=False)


def test_every_example_is_executed_here() -> None:
    assert set(EXAMPLES) == {"schedule", "async", "cron", "watch", "worker", "webhook", "testing"}
    assert PAGE.read_text().count("```python") == len(EXAMPLES)


def test_schedule(punctual: DevBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("schedule", tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["paid in time", "0 problems"] and len(printed) == 102


def test_async(punctual: DevBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("async", tmp_path)
    assert capsys.readouterr().out == "order-1\n"
    assert list(_shop(punctual).list()) == []


def test_cron(punctual: DevBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run("cron", tmp_path)
    assert [line[11:16] for line in capsys.readouterr().out.splitlines()] == ["09:00"] * 3
    assert _shop(punctual).get("report").state == "scheduled"


def test_watch(punctual: DevBroker, tmp_path: Path) -> None:
    _run("watch", tmp_path)
    punctual.advance("48h")
    assert [fire.key for fire in punctual.fired("silent", namespace="shop")] == ["lamp-7"]


def test_worker(punctual: DevBroker, tmp_path: Path) -> None:
    example = _run("worker", tmp_path)
    shop = _shop(punctual)
    for key, order in (("order-1", 1), ("bad", -1), ("test:1", 1)):
        shop.schedule(key, after="1s", to=Queue("unpaid"), payload={"order": order})
    with example["worker"]:
        punctual.advance("1s")
        wait_until(lambda: shop.get("order-1").attempt == 1 and shop.get("order-1").state == "scheduled")
        punctual.advance("30s")
        wait_until(lambda: all(shop.history(key) for key in ("order-1", "bad", "test:1")))
    assert [fire.result for fire in shop.history("order-1")] == [{"reminded": 1}]
    assert [one.outcome for one in shop.history("order-1")[0].attempts] == ["failed", "acked"]
    assert [fire.end for fire in shop.history("test:1")] == ["done"]
    assert [letter.reason for letter in shop.dead()] == ["refused"]
    example["client"].close()


def test_webhook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = _run("webhook", tmp_path)
    now = datetime.now(timezone.utc)
    signature = Reference(example["SECRET"]).sign("fire-1", now, "[1]")
    headers = {"webhook-id": "fire-1", "webhook-timestamp": str(int(now.timestamp())), "punctual-key": "order-1"}
    client = example["app"].test_client()
    assert client.post("/hook", data="[1]", headers={**headers, "webhook-signature": signature}).status_code == 204
    assert capsys.readouterr().out == "fire-1 order-1 [1]\n"
    assert client.post("/hook", data="[2]", headers={**headers, "webhook-signature": signature}).status_code == 401


def test_testing(tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(EXAMPLES["testing"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout
