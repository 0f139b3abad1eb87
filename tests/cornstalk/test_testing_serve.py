"""cornstalk.testing of an app's `serve`: plain, recorded and checked, several composites in turn and side by side."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError, chunks
from cornstalk.errors import RecordError
from cornstalk.testing import (
    CheckFailed,
    assert_runs_side_by_side,
    assert_uses,
    check,
    inspect,
    run_plain,
    run_recorded,
)
from cornstalk.testing.turns import Order
from tests.cornstalk.model.apps import ENGINES, LLM, Answer, Echo, Risky, Voice


class Ask(BaseModel):
    text: str = "a b"


class Line(BaseModel):
    text: Stream[str]


class Parts(BaseModel):
    parts: list[Line]


class Write(CompositeTask):
    brain, judge = LLM(), Echo(tag="write")

    def invoke(self, q: Ask) -> Answer:
        label = self.judge(x=q.text).s
        if "!" in label:  # a graph break
            label = self.judge(x=label.strip("!")).s
        return Answer(text=self.brain(prompt=q.text).text, label=label)


class Speak(CompositeTask):
    voice = Voice()

    def invoke(self, line: Line) -> Answer:
        return Answer(text=line.text, audio=self.voice(text=line.text).audio)


class Fails(CompositeTask):
    risky, echo = Risky(), Echo(tag="fails")

    def invoke(self, q: Ask) -> Answer:
        return Answer(text=self.risky(x=self.echo(x=q.text).s + "bad").s)


class Split(CompositeTask):
    brain = LLM(model="split")

    def invoke(self, q: Ask) -> Parts:
        return Parts(parts=[Line(text=self.brain(prompt=word).text) for word in q.text.split()])


write, speak, fails, split = Write(), Speak(), Fails(), Split()


def app(body: Callable[[Any], Any]) -> App:
    """An app whose serve is this function of the request's text; what it returns is the label, or the answer."""

    async def serve(q: Ask) -> Answer:
        made = await body(q.text)
        return made if isinstance(made, Answer) else Answer(text="", label=str(made))

    return App("served", serve)


def all_agree(body: Callable[[str], Any], text: str = "a b") -> Any:
    """What each way to run it gives."""
    it, asked = app(body), {"text": text}
    plain = run_plain(it, asked, ENGINES)
    assert run_recorded(it, asked, ENGINES).response == plain
    assert check(it, asked, ENGINES).response == plain
    return plain


# ------------------------------------------------------------ the answer


async def in_turn(text: str) -> Answer:
    first = await write(Ask(text=text))
    second = await write(Ask(text=first.label + "!"))
    return Answer(text=second.text, label=first.label + second.label)


async def side_by_side(text: str) -> Answer:
    first, second = await asyncio.gather(write(Ask(text=text)), write(Ask(text=text + "!")))
    pieces = [piece async for piece in chunks(first.text)]
    return Answer(text=second.text, label=f"{pieces} {await first.text}")


async def in_a_group(text: str) -> Answer:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(write(Ask(text=text + "!" * i))) for i in range(3)]
    return Answer(text=tasks[1].result().text, label="".join([await t.result().text for t in tasks]))


async def passed_on(text: str) -> Answer:
    written = await write(Ask(text=text))
    spoken = await speak(Line(text=written.text))
    return Answer(text=spoken.text, audio=spoken.audio)


async def background(text: str) -> str:
    later = asyncio.create_task(write(Ask(text="later")))
    first = await write(Ask(text=text))
    return f"{await first.text} {(await later).label}"


async def waited_for_at_last(text: str) -> str:
    later = asyncio.create_task(write(Ask(text="later")))
    try:
        first = await write(Ask(text=text))
    finally:
        last = await later
    return first.label + last.label


async def the_same_twice(text: str) -> str:
    one, other = await asyncio.gather(write(Ask(text=text)), write(Ask(text=text)))
    return await one.text + await other.text


async def loop_on_results(text: str) -> str:
    while len(text) < 12:
        text = (await write(Ask(text=text + "x"))).label
    return text


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (in_turn, Answer(text="a b!|", label="a ba b")),
        (side_by_side, Answer(text="a b!|", label="['a ', 'b|'] a b|")),
        (in_a_group, Answer(text="a b!|", label="a b|a b!|a b!!|")),
        (passed_on, Answer(text="a b|", audio=b"A B|")),
        (background, Answer(text="", label="a b| later")),
        (waited_for_at_last, Answer(text="", label="a blater")),
        (the_same_twice, Answer(text="", label="a b|a b|")),
        (loop_on_results, Answer(text="", label="a bxxxxxxxxx")),
    ],
)
def test_all_ways_agree(body: Any, answer: Answer) -> None:
    assert all_agree(body) == answer


@pytest.mark.parametrize("order", ["first", "last", "shuffled"])
@pytest.mark.parametrize("crash_at", [None, 1, 4, 9])
def test_neither_order_nor_crash_changes_the_answer(order: Order, crash_at: int | None) -> None:
    run = run_recorded(app(in_a_group), {"text": "a b"}, ENGINES, order=order, seed=3, crash_at=crash_at)
    assert run.response == Answer(text="a b!|", label="a b|a b!|a b!!|")


async def test_inside_an_async_test() -> None:
    assert run_plain(app(side_by_side), {}, ENGINES) == run_recorded(app(side_by_side), {}, ENGINES).response
    assert check(app(side_by_side), {}, ENGINES)


def test_a_plain_run_runs_serve_once_in_the_thread_of_the_test() -> None:
    runs = []

    async def body(text: str) -> str:
        runs.append(threading.get_ident())
        return (await write(Ask(text=text))).label

    run_plain(app(body), {}, ENGINES)
    assert runs == [threading.get_ident()]


def test_streams_in_nested_models() -> None:
    async def body(text: str) -> str:
        answer = await split(Ask(text=text))
        return "+".join([await part.text for part in answer.parts])

    assert all_agree(body, "a b c").label == "a|+b|+c|"


def test_a_request_is_taken_as_it_is_at_the_call() -> None:
    async def body(text: str) -> str:
        asked = Ask(text=text + "!")
        call = asyncio.create_task(write(asked))
        await asyncio.sleep(0)
        asked.text = "changed"
        return (await call).label

    assert all_agree(body).label == "a b"


# ------------------------------------------------------------ failures


async def caught(text: str) -> str:
    try:
        return (await fails(Ask(text=text))).label
    except TaskError as error:
        return error.error.message


async def caught_of_several(text: str) -> str:
    try:
        await asyncio.gather(write(Ask(text=text)), fails(Ask(text=text)))
    except TaskError:
        return (await write(Ask(text="instead"))).label
    return "never"


async def caught_of_a_group(text: str) -> str:
    try:
        async with asyncio.TaskGroup() as group:
            for i in range(3):
                group.create_task(fails(Ask(text=text * i)))
    except* TaskError:
        pass
    return "went on"


async def each_by_itself(text: str) -> str:
    calls = [fails(Ask(text=text)), write(Ask(text=text))]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    return " ".join(type(e).__name__ for e in ended)


@pytest.mark.parametrize(
    ("body", "label"),
    [
        (caught, "ValueError: cannot a bbad"),
        (caught_of_several, "instead"),
        (caught_of_a_group, "went on"),
        (each_by_itself, "TaskError Answer"),
    ],
)
def test_failures_are_caught_at_their_await(body: Any, label: str) -> None:
    assert all_agree(body).label == label


async def uncaught(text: str) -> None:
    await asyncio.gather(*(fails(Ask(text=text * i)) for i in range(3)))


async def uncaught_group(text: str) -> None:
    async with asyncio.TaskGroup() as group:
        for i in range(3):
            group.create_task(fails(Ask(text=text * i)))


async def own_error(text: str) -> int:
    return int((await write(Ask(text=text))).label)


@pytest.mark.parametrize(
    ("body", "error"), [(uncaught, TaskError), (uncaught_group, ExceptionGroup), (own_error, ValueError)]
)
def test_errors_that_all_agree_on_are_raised(body: Any, error: type[Exception]) -> None:
    for run in (run_plain, run_recorded, check):
        with pytest.raises(error):
            run(app(body), {}, ENGINES)


async def breaks(prompt: str, images: list[Any]) -> AsyncIterator[tuple[str, Any]]:
    yield "text", "so far "
    raise ValueError("GPU fell off")


@pytest.mark.parametrize("read", [lambda text: _joined(text), lambda text: text])
def test_a_stream_that_breaks_half_way_is_an_error_where_it_is_read_and_of_the_request(read: Any) -> None:
    seen: list[str] = []

    async def body(text: str) -> str:
        answer = await write(Ask(text=text))
        try:
            await read(answer.text)
        except TaskError as error:
            seen.append(error.error.message)
        return "caught"

    with pytest.raises(TaskError, match="GPU fell off"):
        run_recorded(app(body), {}, {**ENGINES, LLM: breaks})
    assert seen == ["ValueError: GPU fell off"]


async def _joined(text: str) -> str:
    return "".join([piece async for piece in chunks(text)])


def test_an_assertion_in_an_engine_ends_the_test_whatever_serve_catches() -> None:
    def picky(x: str) -> dict[str, Any]:
        assert x == "something else"
        return {}

    async def body(text: str) -> str:
        try:
            return (await write(Ask(text=text))).label
        except Exception:
            return "swallowed"

    for run in (run_plain, run_recorded, check):
        with pytest.raises(AssertionError, match="something else"):
            run(app(body), {}, {**ENGINES, Echo: picky})


def test_a_run_that_stalls_says_which_calls_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(prompt: str, images: list[str]) -> AsyncIterator[tuple[str, Any]]:
        await asyncio.Event().wait()
        yield "text", ""

    async def body(text: str) -> str:
        try:
            return (await write(Ask(text=text))).label
        except Exception:
            return "swallowed"

    monkeypatch.setattr("cornstalk.testing.driver.STALL", 0.05)
    with pytest.raises(AssertionError, match=r"no call ends any more; under way: write\(\w+\)#0/brain#0"):
        run_recorded(app(body), {}, {**ENGINES, LLM: never})


def test_a_stream_is_no_plain_value() -> None:
    async def looked_at(text: str) -> str:
        return "x" + (await write(Ask(text=text))).text

    async def in_a_plain_field(text: str) -> Answer:
        return Answer.model_construct(text="", label=(await write(Ask(text=text))).text)

    for run in (run_plain, run_recorded):
        with pytest.raises(TypeError, match="`await` it for the whole"):
            run(app(looked_at), {}, ENGINES)
        with pytest.raises(RecordError, match="label of the response is no Stream field"):
            run(app(in_a_plain_field), {}, ENGINES)


def test_a_task_that_serve_does_not_have() -> None:
    async def body(text: str) -> str:
        return (await Write()(Ask(text=text))).label

    for run in (run_plain, run_recorded):
        with pytest.raises(RecordError, match="Write is none of the tasks of serve"):
            run(app(body), {}, ENGINES)


# ------------------------------------------------------------ a crash


def test_after_a_crash_serve_runs_again_and_its_calls_answer_from_the_log() -> None:
    runs, made = [], []

    def echo(x: str) -> dict[str, Any]:
        made.append(x)
        return ENGINES[Echo](x)

    async def body(text: str) -> str:
        runs.append(text)
        first = await write(Ask(text=text + "!"))
        return (await write(Ask(text=first.label + "2"))).label

    engines = {**ENGINES, Echo: echo}
    steps = run_recorded(app(body), {}, engines).steps
    for step in range(1, steps + 1):
        runs.clear()
        made.clear()
        assert run_recorded(app(body), {}, engines, crash_at=step).response.label == "a b2"
        assert len(runs) == 2
        assert made == ["a b!", "a b", "a b2"]  # what is stored is not made again


def test_another_run_may_not_answer_with_another_stream_than_clients_were_told() -> None:
    runs: list[int] = []

    async def body(text: str) -> Answer:
        runs.append(len(runs))
        first, second = await write(Ask(text=text)), await write(Ask(text=text))
        return second if len(runs) % 2 else first

    steps = run_recorded(app(body), {}, ENGINES).steps
    runs.clear()
    with pytest.raises(RecordError, match="serve answered with other streams than it did before the crash"):
        run_recorded(app(body), {}, ENGINES, crash_at=steps)


# ------------------------------------------------------------ what check finds


@pytest.mark.parametrize("changing", [time.perf_counter, itertools.count().__next__], ids=["clock", "counter"])
def test_what_changes_and_reaches_the_response(changing: Any) -> None:
    async def body(text: str) -> str:
        return f"{(await write(Ask(text=text))).label} {changing()}"

    with pytest.raises(CheckFailed, match="serve gives different answers for the same results: label was"):
        check(app(body), {}, ENGINES)


def test_what_changes_and_reaches_a_call() -> None:
    count = itertools.count()

    async def body(text: str) -> int:
        return len((await write(Ask(text=f"{next(count)}"))).label)

    with pytest.raises(CheckFailed, match="serve makes other calls when it runs again: now\nwrite"):
        check(app(body), {}, ENGINES)


def test_a_race_that_another_order_ends_otherwise() -> None:
    async def body(text: str) -> str:
        calls = [asyncio.create_task(write(Ask(text=t))) for t in "ab"]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        return "".join(sorted(task.result().label for task in done))

    with pytest.raises(CheckFailed, match=r"plain Python and .* differ: label was"):
        check(app(body), {}, ENGINES)


# ------------------------------------------------------------ the graph, and what may be said of a run


def test_the_graph_has_the_calls_of_all_composites_and_the_edges_between_them() -> None:
    run = run_recorded(app(passed_on), {}, ENGINES)
    assert [n.id.partition("(")[0] for n in run.graph.nodes] == ["write", "write", "speak"]
    ((source, to),) = run.graph.edges
    assert source.node.startswith("write(")
    assert (source.output, source.stream, to[:6]) == ("text", True, "speak(")
    assert str(inspect(app(passed_on), {}, ENGINES)) == str(run.graph)
    assert set(run.components) == {LLM().component, Echo(tag="write").component, Voice().component}
    assert run.passes == 5


def test_what_was_used() -> None:
    run = run_recorded(app(passed_on), {}, ENGINES)
    assert_uses(run, LLM, Echo(tag="write"), Voice)
    for unused in (Risky, Echo(tag="fails"), LLM(model="split")):
        with pytest.raises(AssertionError, match="was not called"):
            assert_uses(run, unused)


async def chain_beside_one(text: str) -> str:
    async def chain() -> str:
        first = await write(Ask(text=text))
        return (await split(Ask(text=first.label))).parts[0].text

    spoken, last = await asyncio.gather(speak(Line(text=text)), chain())
    return f"{await last} {await spoken.audio!r}"


async def one_after_the_other(text: str) -> str:
    first = await write(Ask(text=text))
    await first.text
    spoken = await speak(Line(text=first.label))
    return f"{await spoken.audio!r}"


def test_what_runs_side_by_side() -> None:
    run = run_recorded(app(chain_beside_one), {}, ENGINES)
    for other in (LLM(), Echo(tag="write"), LLM(model="split")):
        assert_runs_side_by_side(run, Voice, other)
    with pytest.raises(AssertionError, match="one after the other"):
        assert_runs_side_by_side(run, Echo(tag="write"), LLM(model="split"))
    run = run_recorded(app(one_after_the_other), {}, ENGINES)
    with pytest.raises(AssertionError, match="one after the other"):
        assert_runs_side_by_side(run, LLM, Voice)
