"""Every scenario of `clients/scenarios`, with both clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from punctual import AsyncClient, Client

from .scenario import SCENARIOS, Run

FILES = sorted(SCENARIOS.glob("*.json"))


def test_the_scenarios_are_found() -> None:
    assert len(FILES) >= 60


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario(file: Path, kind: type[Client] | type[AsyncClient]) -> None:
    scenario = json.loads(file.read_text())

    async def run() -> None:
        await Run(scenario, kind).run()

    asyncio.run(run())
