"""Unit tasks with simple, deterministic engines, and ways to run a composite over them."""

from __future__ import annotations

import asyncio
import enum
import functools
import operator
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar

from pydantic import BaseModel

from cornstalk import CompositeTask, Stream, Tensor, UnitTask
from cornstalk.response import Head
from cornstalk.testing.driver import Driver
from cornstalk.testing.engines import Engine, Fakes
from cornstalk.testing.executor import Executor
from cornstalk.testing.store import Store
from cornstalk.testing.turns import Turns


class Person(BaseModel):
    name: str
    age: int


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


class Echo(UnitTask):
    """Gives back what it got, as each type."""

    tag: str = ""

    class Out(BaseModel):
        s: str
        n: int
        f: float
        b: bytes
        l: list[str]  # noqa: E741
        d: dict[str, int]
        m: Person
        yes: bool
        o: str | None
        mood: Mood

    def __call__(self, *, x: Any) -> Out:
        raise NotImplementedError


class LLM(UnitTask):
    kind: ClassVar[str] = "llm"
    model: str = "m"

    class Out(BaseModel):
        text: Stream[str]
        tokens: int

    def __call__(self, *, prompt: str, images: list[Tensor] = []) -> Out:  # noqa: B006
        raise NotImplementedError


class Eye(UnitTask):
    class Out(BaseModel):
        emb: Tensor

    def __call__(self, *, image: str) -> Out:
        raise NotImplementedError


class Voice(UnitTask):
    class Out(BaseModel):
        audio: Stream[bytes]

    def __call__(self, *, text: Stream[str]) -> Out:
        raise NotImplementedError


class Risky(UnitTask):
    class Out(BaseModel):
        s: str

    def __call__(self, *, x: Any) -> Out:
        raise NotImplementedError


class Answer(BaseModel):
    text: Stream[str]
    audio: Stream[bytes] = b""
    label: str = ""


def echo(x: Any) -> dict[str, Any]:
    s = str(x)
    return {
        "s": s,
        "n": len(s),
        "f": len(s) / 2,
        "b": s.encode(),
        "l": s.split(),
        "d": {w: len(w) for w in s.split()},
        "m": Person(name=s, age=len(s)),
        "yes": len(s) % 2 == 0,
        "o": None if len(s) % 3 == 0 else s,
        "mood": Mood.GLAD if len(s) % 2 else Mood.SAD,
    }


async def llm(prompt: str, images: list[str]) -> AsyncIterator[tuple[str, Any]]:
    yield "tokens", len(prompt)
    for word in (prompt + "|" + "+".join(images)).replace(" ", " \0").split("\0"):
        yield "text", word


async def voice(text: AsyncIterator[str]) -> AsyncIterator[tuple[str, bytes]]:
    async for piece in text:
        yield "audio", piece.upper().encode()


def risky(x: Any) -> dict[str, str]:
    if "bad" in str(x) or len(str(x)) % 4 == 3:
        raise ValueError(f"cannot {str(x)[:20]}")
    return {"s": f"ok:{x}"}


ENGINES: dict[type[UnitTask], Engine] = {
    Echo: echo,
    LLM: llm,
    Eye: lambda image: {"emb": f"e({image})"},
    Voice: voice,
    Risky: risky,
}


def composite(invoke: Callable[..., Any], **tasks: Any) -> CompositeTask:
    """A composite task of one function, over the five unit tasks above if no others are given."""
    units = {"echo": Echo(), "brain": LLM(), "eye": Eye(), "voice": Voice(), "risky": Risky()}
    made: CompositeTask = type("App", (CompositeTask,), {"invoke": invoke, **(tasks or units)})()
    return made


def executor(task: CompositeTask, seed: int = 0, engines: dict[type[UnitTask], Engine] = {}) -> Executor:  # noqa: B006
    """Its calls end in an order of that seed; `engines` replaces some of those above."""
    return Executor(Fakes({**ENGINES, **engines}), task.unit_tasks(), Turns("shuffled", seed))


def run(task: CompositeTask, request: Any = None, seed: int = 0, strict: bool = False) -> tuple[Any, Driver, Executor]:
    """Drives a request to its end: (result, driver, executor)."""

    async def main() -> tuple[Any, Driver, Executor]:
        ex = executor(task, seed)
        driver = Driver(task, request, ex, Store(), strict)
        return await asyncio.wait_for(driver.answer(), 5), driver, ex

    return asyncio.run(main())


class Begun:
    """A response that has begun, as a client gets it."""

    def __init__(self, head: Head, driver: Driver, job: asyncio.Task[Any]) -> None:
        self._head, self._driver, self._job = head, driver, job
        self.streams = head.streams

    def plain(self, name: str) -> Any:
        return getattr(self._head.response, name)

    async def pieces(self, path: str) -> AsyncIterator[Any]:
        """The pieces of a field, as they come; an error found later ends them as an error, never silently."""
        if path not in self.streams:
            yield self.plain(path)
            return
        async for piece in self._driver.store.read(self.streams[path]):
            yield piece
        await asyncio.shield(self._job)

    async def whole(self, path: str) -> Any:
        pieces = [piece async for piece in self.pieces(path)]
        return functools.reduce(operator.add, pieces)


def drive(task: CompositeTask, request: Any, use: Callable[..., Any], seed: int = 0) -> tuple[Any, Any]:
    """(what `use(head, driver)` made of the response when it began, final result)."""

    async def main() -> tuple[Any, Any]:
        driver = Driver(task, request, executor(task, seed), Store())
        job = asyncio.create_task(driver.answer())
        job.add_done_callback(lambda t: t.exception())
        head = Begun(await asyncio.wait_for(driver.head, 5), driver, job)
        return await asyncio.wait_for(use(head, driver), 5), await asyncio.wait_for(job, 5)

    return asyncio.run(main())
