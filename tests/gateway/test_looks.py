"""However many ask at once, the server is asked once."""

from __future__ import annotations

import asyncio

import pytest

from gateway.looks import Looks


async def test_who_asks_while_another_asks_gets_the_same_answer() -> None:
    asked: list[str] = []

    async def ask(name: str) -> str:
        asked.append(name)
        await asyncio.sleep(0)
        return f"of {name}"

    looks = Looks(ask)
    answers = await asyncio.gather(*(looks.at("ab") for _ in range(20)))
    assert answers == [["of a", "of b"]] * 20
    assert asked == ["a", "b"]


async def test_what_could_not_be_told_is_asked_again() -> None:
    answers = iter([ValueError("away"), 7])

    async def ask(_: str) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    looks = Looks(ask)
    with pytest.raises(ValueError, match="away"):
        await looks.at("a")
    assert await looks.at("a") == [7]
