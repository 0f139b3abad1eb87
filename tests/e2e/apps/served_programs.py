"""A `serve` that runs programs that come as data: composites in turn, gathered, in groups, in the background, caught.

Each composite call runs a program of apps/interpreter.py; tests/e2e/served_statements.py makes both. Variables by their
first letter: s text, r the reply of a composite, whose stream may still arrive.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError, chunks
from cornstalk.tasks.null import NullStream
from tests.e2e.apps.interpreter import Ask, Env, Programs, Reply, count, truth, value

TAKEN: Counter[str] = Counter()
"""What programs did in this process, for the report of a test. No program depends on it."""


class Line(BaseModel):
    title: str
    source: Stream[str]


class Relay(CompositeTask):
    echo = NullStream(name="int-echo")

    def invoke(self, line: Line) -> Reply:
        return Reply(path=[line.title], text=self.echo(source=line.source).text)


programs, relay = Programs(1), Relay()


async def run(program: list[Any], env: Env) -> bool:
    """Whether a statement left the program."""
    for kind, *parts in program:
        TAKEN[kind] += 1
        if await STATEMENTS[kind](env, *parts):
            return True
    return False


def called(env: Env, text: Any, program: list[Any]) -> Awaitable[Reply]:
    made: Awaitable[Reply] = programs(Ask(text=value(text, env), program=program))
    return made


async def do_call(env: Env, target: str, text: Any, program: list[Any]) -> None:
    env[target] = await called(env, text, program)


async def do_gather(env: Env, targets: list[str], calls: list[Any]) -> None:
    env |= zip(targets, await asyncio.gather(*(called(env, *call) for call in calls)), strict=True)


async def do_group(env: Env, targets: list[str], calls: list[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(whole_call(called(env, *call))) for call in calls]
    env |= zip(targets, (task.result() for task in tasks), strict=True)


async def whole_call(call: Awaitable[Reply]) -> Reply:
    return await call


async def do_later(env: Env, target: str, text: Any, program: list[Any], body: list[Any]) -> bool:
    later = asyncio.create_task(whole_call(called(env, text, program)))
    try:
        left = await run(body, env)
    finally:
        ended = await asyncio.gather(later, return_exceptions=True)
    env[target] = ended[0] if isinstance(ended[0], Reply) else Reply(path=["failed"])
    return left


async def do_relay(env: Env, target: str, source: str, text: Any) -> None:
    env[target] = await relay(Line(title=value(text, env), source=env[source].text))


async def do_read(env: Env, target: str, source: str) -> None:
    env[target] = "".join([piece async for piece in chunks(env[source].text)])


async def do_whole(env: Env, target: str, source: str) -> None:
    text = env[source].text
    env[target] = text if isinstance(text, str) else await text


async def do_path(env: Env, target: str, source: str) -> None:
    env[target] = "+".join(env[source].path)[:48]


async def do_if(env: Env, test: Any, then: list[Any], other: list[Any]) -> bool:
    return await run(then if truth(test, env) else other, env)


async def do_for(env: Env, times: Any, body: list[Any]) -> bool:
    for _ in range(count(times, env)):
        if await run(body, env):
            return True
    return False


async def do_try(env: Env, body: list[Any], handler: list[Any]) -> bool:
    try:
        return await run(body, env)
    except (TaskError, ExceptionGroup):
        TAKEN["caught"] += 1
    return await run(handler, env)


async def do_set(env: Env, target: str, text: Any) -> None:
    env[target] = value(text, env)


async def do_none(env: Env, target: str) -> None:
    env[target] = Reply(path=["none"])


async def do_leave(env: Env) -> bool:
    return True


STATEMENTS: dict[str, Any] = {name[3:]: member for name, member in list(globals().items()) if name.startswith("do_")}


async def serve(q: Ask) -> Reply:
    env: Env = {"s": q.text}
    await run(q.program, env)
    replies = [v for k, v in env.items() if k[0] == "r"]
    path = [v for k, v in env.items() if k[0] == "s"] + [step for reply in replies for step in reply.path]
    return Reply(path=path, text=replies[-1].text) if replies else Reply(path=path)


app = App("served_programs", serve)
