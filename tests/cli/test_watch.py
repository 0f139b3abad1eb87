"""`status --watch` off a terminal: a line for each change, and for gateways that go away and come back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

from cornstalk.cli.errors import UNREACHABLE, CliError
from cornstalk.cli.watch import watch

AWAY = CliError("cannot reach http://x", why="refused", exit_code=UNREACHABLE)


def found(pending: int = 0, processes: int = 1) -> dict[str, Any]:
    component = {
        "id": "null-a",
        "state": "active",
        "replicas": 2,
        "workers": [{"ready": True}, {"ready": False}],
        "pending": {"interactive": pending, "batch": 0},
        "in_flight": {"interactive": 1, "batch": 1},
    }
    started = [{"name": f"gateway-{i}", "pid": 7, "starts": 1} for i in range(processes)]
    apps = [{"name": "words", "version": "abc"}]
    return {"gateways": ["http://x"], "apps": apps, "components": [component], "processes": started}


async def seen(capsys: pytest.CaptureFixture[str], looks: list[Any], as_json: bool = False) -> list[str]:
    """What is printed over these looks, without the time of day."""
    left = iter(looks)

    async def look() -> dict[str, Any]:
        one = next(left, None)
        if one is None:
            raise asyncio.CancelledError
        if isinstance(one, CliError):
            raise one
        assert isinstance(one, dict)
        return one

    with suppress(asyncio.CancelledError):
        await watch(look, lambda _: None, as_json, every=0.0)
    lines = capsys.readouterr().out.splitlines()
    return lines if as_json else [line.split(" ", 1)[1] for line in lines]


async def test_a_line_for_whatever_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = await seen(capsys, [found(), found(), found(pending=3), found(pending=3, processes=0)])
    assert lines == [
        "gateway: http://x",
        "app words: version abc",
        "null-a: active, 1 of 2 workers, 0 pending, 2 in flight",
        "gateway-0: pid 7, starts 1",
        "null-a: active, 1 of 2 workers, 3 pending, 2 in flight",
        "gateway-0: gone",
    ]


async def test_gateways_that_go_away_and_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    lines = await seen(capsys, [found(), AWAY, AWAY, found()])
    assert lines[4:] == ["gateway: cannot reach http://x: refused", "gateway: http://x"]


async def test_an_object_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    objects = [json.loads(line) for line in await seen(capsys, [found(), found(), found(1), AWAY], as_json=True)]
    assert objects == [found(), found(1), {**found(1), "away": "cannot reach http://x: refused"}]


async def test_a_first_look_that_fails_and_any_other_error_end_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CliError, match="cannot reach"):
        await seen(capsys, [AWAY])
    with pytest.raises(CliError, match="refused"):
        await seen(capsys, [found(), CliError("refused")])
