"""cornstalk.testing: plain and recorded runs, the graph, fake engines, assertions."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError, Tensor, UnitTask, Upload, now
from cornstalk.errors import BadInput, EngineError
from cornstalk.testing import (
    Graph,
    assert_runs_side_by_side,
    assert_uses,
    inspect,
    run_plain,
    run_recorded,
    upload,
)
from cornstalk.testing.turns import Order
from tests.cornstalk.model.apps import ENGINES, LLM, Answer, Echo, Eye, Risky, Voice, composite


class Ask(BaseModel):
    text: str
    speak: bool = True


class Omni(CompositeTask):
    brain, judge, voice = LLM(), Echo(), Voice()

    def invoke(self, q: Ask) -> Answer:
        text = self.brain(prompt=q.text).text
        label = self.judge(x=q.text).s
        if not q.speak:
            return Answer(text=text, label=label)
        return Answer(text=text, audio=self.voice(text=text).audio, label=label)


ASK = Ask(text="a b")
ANSWER = Answer(text="a b|", audio=b"A B|", label="a b")


# ------------------------------------------------------------ the answer


def test_plain_and_recorded_give_the_same() -> None:
    assert run_plain(Omni(), ASK, ENGINES) == ANSWER
    assert run_recorded(Omni(), ASK, ENGINES).response == ANSWER


def test_an_app_takes_what_a_client_sends() -> None:
    app = App("omni", Omni())
    assert run_plain(app, {"text": "a b"}, ENGINES) == ANSWER
    assert run_recorded(app, {"text": "a b"}, ENGINES).response == ANSWER
    with pytest.raises(BadInput, match="no such field"):
        run_plain(app, {"text": "a b", "tone": 1}, ENGINES)


async def test_a_recorded_run_inside_an_async_test() -> None:
    assert run_recorded(Omni(), ASK, ENGINES).response == ANSWER
    with pytest.raises(TaskError):
        run_recorded(composite(lambda self, q: self.risky(x="bad").s), "q", ENGINES)


def test_plain_runs_invoke_once_on_real_values() -> None:
    seen = []

    def invoke(self: Any, q: str) -> list[type]:
        seen.append(q)
        out = self.brain(prompt=q)
        return [type(out.text), type(out.tokens), type(self.echo(x=out.text).d), type(self.eye(image=q).emb)]

    assert run_plain(composite(invoke), "x", ENGINES) == [str, int, dict, Tensor]
    assert seen == ["x"]


def test_plain_runs_in_nested_composites() -> None:
    step = composite(lambda self, q: self.echo(x=q + "!").s)
    outer = composite(lambda self, q: self.step(self.step(q)), step=step)
    assert run_plain(outer, "x", ENGINES) == "x!!"


@pytest.mark.parametrize("order", ["first", "last", "shuffled"])
@pytest.mark.parametrize("crash_at", [None, 1, 3, 7])
def test_neither_order_nor_crash_changes_the_answer(order: Order, crash_at: int | None) -> None:
    run = run_recorded(Omni(), ASK, ENGINES, order=order, seed=5, crash_at=crash_at)
    assert run.response == ANSWER


def test_a_crash_comes_after_its_step_and_only_what_is_stored_is_left() -> None:
    started: list[str] = []

    def echo(x: str) -> dict[str, Any]:
        started.append(x)
        return ENGINES[Echo](x)

    task = composite(lambda self, q: self.echo(x=self.echo(x=q).s + "!").s)
    steps = run_recorded(task, "q", {Echo: echo}).steps
    assert steps == 4  # a pass, a result, a pass, a result
    counts = []
    for step in range(1, steps + 1):
        started.clear()
        assert run_recorded(task, "q", {Echo: echo}, crash_at=step).response == "q!"
        counts.append(len(started))
    assert counts == [2, 2, 2, 2]  # one call is under way at a time, and a stored result is not made again


def test_time_is_fixed() -> None:
    task = composite(lambda self, q: now().isoformat())
    assert run_plain(task, "q", {}) == run_recorded(task, "q", {}).response == "2026-01-01T00:00:00+00:00"


# ------------------------------------------------------------ errors


def test_errors_of_the_app_are_raised_from_its_own_line() -> None:
    def invoke(self: Any, q: str) -> int:
        return int(self.echo(x=q).s)

    for run in (run_plain, run_recorded):
        with pytest.raises(ValueError, match="invalid literal") as error:
            run(composite(invoke), "x", ENGINES)
        assert "int(self.echo(x=q).s)" in (traceback.extract_tb(error.value.__traceback__)[-1].line or "")


def test_what_an_engine_raises_fails_the_call() -> None:
    def refuses(x: str) -> dict[str, Any]:
        raise EngineError("no room", code="full")

    def invoke(self: Any, q: str) -> str:
        try:
            return str(self.risky(x=q).s)
        except TaskError as error:
            return f"{error.error.code}: {error.error.message}"

    for run in (run_plain, lambda *a: run_recorded(*a).response):
        assert run(composite(invoke), "q", {Risky: refuses}) == "full: no room"
        assert run(composite(invoke), "bad", ENGINES) == "engine_raised: ValueError: cannot bad"


def test_what_depends_on_a_failed_call_never_runs() -> None:
    def invoke(self: Any, q: str) -> str:
        try:
            return str(self.echo(x=self.risky(x="bad").s).s)
        except TaskError:
            return str(self.echo(x="plan b").s)

    run = run_recorded(composite(invoke), "q", ENGINES)
    assert run.response == "plan b"
    assert run.graph.cut == ("echo#0",)
    assert [n.id for n in run.graph.nodes] == ["risky#0", "echo#0~1"]
    assert ("start", "echo#0") not in run.events


def test_an_assertion_in_an_engine_ends_the_test_whatever_invoke_catches() -> None:
    def picky(x: str) -> dict[str, Any]:
        assert x == "something else"
        return {}

    def invoke(self: Any, q: str) -> str:
        try:
            return str(self.echo(x=q).s)
        except Exception:
            return "swallowed"

    for run in (run_plain, run_recorded):
        with pytest.raises(AssertionError, match="something else"):
            run(composite(invoke), "q", {Echo: picky})


def test_a_missing_engine_is_named_when_it_is_called() -> None:
    task = composite(lambda self, q: self.echo(x=q).s if q == "call" else "none needed")
    for run in (run_plain, run_recorded):
        run(task, "x", {})
        with pytest.raises(AssertionError, match=r"add \{Echo: function\}"):
            run(task, "call", {LLM: lambda **_: {}})


@pytest.mark.parametrize(
    ("outputs", "why"),
    [
        ({"text": "a"}, "did not give output 'tokens'"),
        ({"text": "a", "tokens": "3x"}, "output 'tokens': expected int, got str"),
        ({"text": "a", "tokens": 3, "mood": 1}, "'mood', which is not one of its value outputs"),
        ({"text": 5, "tokens": 3}, "a piece is str, got int"),
        (["a"], "a dict of outputs was expected, got list"),
    ],
)
def test_outputs_are_checked_as_those_of_a_worker(outputs: Any, why: str) -> None:
    task = composite(lambda self, q: self.brain(prompt=q).text[0])
    for run in (run_plain, run_recorded):
        with pytest.raises(TaskError, match=why):
            run(task, "q", {LLM: lambda prompt, images: outputs})


def test_a_missing_tensor_is_named() -> None:
    task = composite(lambda self, q: self.brain(prompt=q, images=[self.eye(image="i").emb]).text)
    for run in (run_plain, run_recorded):
        with pytest.raises(TaskError, match="did not give output 'emb'"):
            run(task, "q", {**ENGINES, Eye: lambda image: {}})


# ------------------------------------------------------------ engines


def test_one_function_for_all_tasks() -> None:
    def engine(task: UnitTask, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"text": f"{task.component[:5]} {inputs['prompt']}", "tokens": 1}

    task = composite(lambda self, q: self.brain(prompt=q).text)
    assert run_plain(task, "q", engine) == run_recorded(task, "q", engine).response == "llm-m q"


def test_engines_by_task_and_by_class() -> None:
    small, large = LLM(model="small"), LLM(model="large")
    task = composite(lambda self, q: [m(prompt=q).text for m in (self.small, self.large)], small=small, large=large)

    def says(word: str) -> Any:
        return lambda prompt, images: {"text": word, "tokens": 1}

    engines = {LLM(model="large"): says("by task"), UnitTask: says("by base class")}
    assert run_plain(task, "q", engines) == run_recorded(task, "q", engines).response == ["by base class", "by task"]


def test_streams_whole_in_pieces_and_empty() -> None:
    task = composite(lambda self, q: self.brain(prompt=q).text)
    for given, steps in (("a b", 3), (["a", " ", "b"], 5), ("", 2)):
        run = run_recorded(task, "q", {LLM: lambda prompt, images, given=given: {"text": given, "tokens": 1}})
        assert run.response == "".join(given)
        assert run.steps == steps


def test_a_stream_input_comes_in_pieces_to_who_reads_pieces_and_whole_to_others() -> None:
    got: list[Any] = []

    async def by_piece(text: AsyncIterator[str]) -> AsyncIterator[tuple[str, bytes]]:
        async for piece in text:
            got.append(piece)
            yield "audio", piece.encode()

    def at_once(text: str) -> dict[str, Any]:
        got.append(text)
        return {"audio": text.encode()}

    task = composite(lambda self, q: self.voice(text=self.brain(prompt=q).text).audio)
    literal = composite(lambda self, q: self.voice(text=q).audio)
    for engine, pieces in ((by_piece, ["a ", "b|"]), (at_once, ["a b|"])):
        got.clear()
        assert run_recorded(task, "a b", {**ENGINES, Voice: engine}).response == b"a b|"
        assert got == pieces
        got.clear()
        assert run_plain(task, "a b", {**ENGINES, Voice: engine}) == b"a b|"
        assert got == ["a b|"]
        got.clear()
        assert run_recorded(literal, "a b", {Voice: engine}).response == b"a b"
        assert got == ["a b"]


def test_an_async_engine_of_a_plain_run_must_not_wait() -> None:
    async def waits(prompt: str, images: list[str]) -> AsyncIterator[tuple[str, Any]]:
        await asyncio.sleep(0)
        yield "text", "x"
        yield "tokens", 1
        if prompt == "long":
            await _Never()

    class _Never:
        def __await__(self) -> Any:
            yield "something that only an event loop knows"

    task = composite(lambda self, q: self.brain(prompt=q).text)
    assert run_plain(task, "short", {LLM: waits}) == "x"
    with pytest.raises(AssertionError, match="awaits nothing but its inputs"):
        run_plain(task, "long", {LLM: waits})


def test_a_run_that_stalls_says_which_calls_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(prompt: str, images: list[str]) -> AsyncIterator[tuple[str, Any]]:
        await asyncio.Event().wait()
        yield "text", ""

    monkeypatch.setattr("cornstalk.testing.driver.STALL", 0.05)
    task = composite(lambda self, q: [self.echo(x=q).s, self.brain(prompt=q).text + "!"])
    with pytest.raises(AssertionError, match="no call ends any more; under way: brain#0"):
        run_recorded(task, "q", {**ENGINES, LLM: never})


class Listen(UnitTask):
    class Out(BaseModel):
        words: str

    def __call__(self, *, clip: Upload) -> Out:
        raise NotImplementedError


def test_engines_get_the_bytes_of_uploads() -> None:
    task = composite(lambda self, q: self.ear(clip=q).words, ear=Listen())
    engines = {Listen: lambda clip: {"words": clip.decode()}}
    sent = upload(b"spoken words")
    assert (sent.nbytes, sent.media_type) == (12, "text/plain")
    assert upload(b"", "audio/wav").media_type == "audio/wav"
    assert run_plain(task, sent, engines) == run_recorded(task, sent, engines).response == "spoken words"
    with pytest.raises(AssertionError, match=r"cornstalk.testing.upload"):
        run_plain(task, Upload("d" * 64, 3, "audio/wav"), engines)


def test_large_inputs_reach_engines_and_graph() -> None:
    task = composite(lambda self, q: self.echo(x=q * 200_000).n)
    run = run_recorded(task, "ab", ENGINES)
    assert run.response == run_plain(task, "ab", ENGINES) == 400_000
    assert len(run.graph.nodes[0].inputs["x"]) == 400_000


# ------------------------------------------------------------ the graph, and what may be said of a run


def test_the_graph_has_calls_edges_and_lines() -> None:
    graph = inspect(Omni(), ASK, ENGINES)
    assert [n.id for n in graph.nodes] == ["brain#0", "judge#0", "voice#0"]
    assert [n.component for n in graph.nodes] == [Omni.brain.component, Omni.judge.component, Omni.voice.component]
    assert [(s.node, s.output, s.stream, to) for s, to in graph.edges] == [("brain#0", "text", True, "voice#0")]
    assert graph.nodes[0].inputs == {"prompt": "a b"}  # defaults are left out
    assert graph.of(LLM()) == graph.of(LLM) == graph.nodes[:1]
    assert graph.of(LLM(model="other")) == ()
    lines = str(graph).splitlines()
    assert lines[0].startswith("brain#0(prompt='a b') at test_testing.py:")
    assert lines[2].startswith("voice#0(text=<brain#0.text as it arrives>) at test_testing.py:")
    assert str(Graph(())) == "no calls"


def test_a_run_tells_its_passes_and_components() -> None:
    def invoke(self: Any, q: str) -> str:
        while len(q) < 4:
            q = self.echo(x=q + "!").s
        return q

    run = run_recorded(composite(invoke), "q", ENGINES)
    assert run.response == "q!!!"
    assert run.passes == 4
    assert run.components == {Echo().component: Echo()}
    assert run.events == tuple((what, f"echo#{i}") for i in range(3) for what in ("start", "end"))


def test_assert_uses() -> None:
    run = run_recorded(Omni(), Ask(text="x", speak=False), ENGINES)
    assert_uses(run, LLM, Echo(), "brain#0")
    for unused in (Voice, Voice(), LLM(model="other"), "brain#1"):
        with pytest.raises(AssertionError, match=r"was not called; the calls were\nbrain#0"):
            assert_uses(run, unused)


def test_assert_runs_side_by_side() -> None:
    def invoke(self: Any, q: str) -> list[str]:
        slow = self.brain(prompt=q).text
        first = self.echo(x=q).s
        second = self.eye(image=first + "!").emb if first else None
        return [slow, first, self.voice(text=slow).audio, self.risky(x=second).s]

    run = run_recorded(composite(invoke), "x", ENGINES)
    for one, other in ((LLM, Echo), (LLM, Eye), (LLM, Risky), (LLM, Voice), ("voice#0", Eye)):
        assert_runs_side_by_side(run, one, other)
        assert_runs_side_by_side(run, other, one)
    for one, other in ((Echo, Eye), (Eye, Risky), (Echo, Risky), (Echo, Echo)):
        with pytest.raises(AssertionError, match="one after the other"):
            assert_runs_side_by_side(run, one, other)
    with pytest.raises(AssertionError, match="was not called"):
        assert_runs_side_by_side(run, LLM, Listen)


class Rows(UnitTask):
    class Out(BaseModel):
        rows: Stream[list[Tensor]]

    def __call__(self, *, n: int) -> Out:
        raise NotImplementedError


class Sum(UnitTask):
    class Out(BaseModel):
        total: int

    def __call__(self, *, rows: Stream[list[Tensor]]) -> Out:
        raise NotImplementedError


class Summed(CompositeTask):
    rows, sum = Rows(), Sum()

    def invoke(self, n: int) -> int:
        total = self.sum(rows=self.rows(n=n).rows).total
        return total + 1


async def _sum(rows: AsyncIterator[list[Any]]) -> AsyncIterator[tuple[str, Any]]:
    yield "total", sum([tensor.sum() async for piece in rows for tensor in piece])


def test_streams_of_tensors_in_plain_and_recorded_runs() -> None:
    engines = {Rows: lambda n: {"rows": [np.full(3, i) for i in range(n)]}, Sum: _sum}
    assert run_plain(Summed(), 4, engines) == 19
    assert run_recorded(Summed(), 4, engines).response == 19
