"""Streams: edges while they run, when a response may begin, and that what began is what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask, Stream, TaskError, UnitTask, wait
from cornstalk.errors import RecordError
from cornstalk.messages import Edge, StreamRef, decode_value, encode
from cornstalk.record import Pass, Result
from cornstalk.response import begins, same_response, stored_response, stream_fields, streams_only
from cornstalk.testing.driver import Driver
from cornstalk.testing.store import Store
from tests.cornstalk.model.apps import LLM, Answer, Begun, Echo, Voice, composite, drive, executor, run


def speak(self, q):
    text = self.brain(prompt=q).text
    return Answer(text=text, audio=self.voice(text=text).audio, label="fixed")


def test_a_stream_feeds_a_later_task_while_it_runs() -> None:
    result, _, ex = run(composite(speak), "the quick brown fox jumps over it", seed=3)
    assert result.text == "the quick brown fox jumps over it|"
    assert result.audio == b"THE QUICK BROWN FOX JUMPS OVER IT|"
    assert ex.events.index(("start", "voice#0")) < ex.events.index(("end", "brain#0"))


def test_a_response_streams_before_the_graph_is_done() -> None:
    async def use(head, driver):
        assert head.plain("label") == "fixed"
        assert set(head.streams) == {"text", "audio"}
        assert not driver.store.ends
        return [p async for p in head.pieces("text")], await head.whole("audio")

    (pieces, audio), final = drive(composite(speak), "a b c", use)
    assert pieces == ["a ", "b ", "c|"]
    assert final == Answer(text="a b c|", audio=audio, label="fixed")


def test_a_plain_field_waits_a_stream_field_does_not() -> None:
    def invoke(self, q):
        return Answer(text=self.brain(prompt=q).text, label=self.echo(x="lab").s)

    async def use(head, driver):
        return head.plain("label"), await head.whole("text")

    assert drive(composite(invoke), "a b", use)[0] == ("lab", "a b|")


def test_a_checked_stream_is_not_sent_before_the_check() -> None:
    def invoke(self, q):
        text = self.brain(prompt=q).text
        return Answer(text="no") if "bomb" in text else Answer(text=text)

    async def use(head, driver):
        assert driver.store.ends
        return await head.whole("text")

    assert drive(composite(invoke), "a bomb", use)[0] == "no"
    assert drive(composite(invoke), "a cat", use)[0] == "a cat|"


@pytest.mark.parametrize("seed", range(20))
def test_a_response_does_not_begin_while_a_call_beside_it_may_still_fail(seed: int) -> None:
    def invoke(self, q):
        try:
            self.risky(x="bad")
        except TaskError:
            return Answer(text="sorry")
        return Answer(text=self.brain(prompt=q).text)

    async def use(head, driver):
        return await head.whole("text")

    assert drive(composite(invoke), "a b c", use, seed)[0] == "sorry"


def test_a_stream_that_fails_half_way_ends_as_an_error() -> None:
    async def breaks(prompt, images) -> AsyncIterator[tuple[str, Any]]:
        yield "text", "so far "
        await asyncio.sleep(0)
        raise ValueError("GPU fell off")

    async def main():
        task, got = composite(lambda self, q: Answer(text=self.brain(prompt=q).text)), []
        driver = Driver(task, "q", executor(task, engines={LLM: breaks}), Store())
        job = asyncio.create_task(driver.answer())
        job.add_done_callback(lambda t: t.exception())
        head = Begun(await driver.head, driver, job)

        async def read():
            async for piece in head.pieces("text"):
                got.append(piece)

        with pytest.raises(TaskError, match="GPU fell off"):
            await read()
        return got

    assert asyncio.run(main()) == ["so far "]


def test_a_stream_that_fails_after_its_first_piece_is_an_error_even_if_the_code_catches_it() -> None:
    async def breaks(prompt, images) -> AsyncIterator[tuple[str, Any]]:
        yield "text", "so far "
        await asyncio.sleep(0)
        raise ValueError("GPU fell off")

    def invoke(self, q):
        try:
            return Answer(text=self.brain(prompt=q).text)
        except TaskError:
            return Answer(text="plan b")

    async def main():
        task = composite(invoke)
        driver = Driver(task, "q", executor(task, engines={LLM: breaks}), Store())
        job = asyncio.create_task(driver.answer())
        await driver.head  # what was told cannot be taken back
        with pytest.raises(RecordError, match="the response changed after it began: text was"):
            await job

    asyncio.run(main())


def test_waiting_for_the_text_first_lets_a_plan_b_take_over() -> None:
    async def breaks(prompt, images) -> AsyncIterator[tuple[str, Any]]:
        yield "text", "so far "
        raise ValueError("GPU fell off")

    def invoke(self, q):
        try:
            text = wait(self.brain(prompt=q).text)
        except TaskError:
            text = "plan b"
        return Answer(text=text)

    async def main():
        task = composite(invoke)
        return await Driver(task, "q", executor(task, engines={LLM: breaks}), Store()).answer()

    assert asyncio.run(main()) == Answer(text="plan b")


def test_a_leak_after_streaming_began_ends_the_stream_as_an_error() -> None:
    def invoke(self, q):
        text = self.brain(prompt=q).text
        return Answer(text=text, label=type(text).__name__)

    async def use(head, driver):
        with pytest.raises(RecordError, match=r"label was 'Pending\[str\]', then 'str'"):
            await head.whole("text")

    with pytest.raises(RecordError):
        drive(composite(invoke), "q", use)


@pytest.mark.parametrize("beside", [False, True])
def test_a_response_head_is_not_built_in_a_dead_pass(beside: bool) -> None:
    def invoke(self, q):
        early = self.brain(prompt=q).text if beside else None
        s = self.echo(x="lab").s
        try:
            label = s.upper()
        except:  # noqa: E722
            label = "swallowed"
        return Answer(text=early or self.brain(prompt=q).text, label=label)

    async def use(head, driver):
        return head.plain("label")

    assert drive(composite(invoke), "q", use)[0] == "LAB"


def test_a_known_stream_passed_on_stays_an_edge() -> None:
    def invoke(self, q):
        text = self.brain(prompt=q).text
        len(text)
        return self.voice(text=text).audio

    _, driver, _ = run(composite(invoke), "a long enough prompt to matter for sure")
    brain, voice = driver.store.log()[0]
    assert voice.inputs == {"text": Edge(brain.token, "text", True)}
    assert voice.outputs == {"audio": "stream"}


def test_a_short_known_stream_travels_as_one_piece() -> None:
    def invoke(self, q):
        text = self.brain(prompt=q).text
        len(text)
        return self.voice(text=text).audio

    result, driver, _ = run(composite(invoke), "ab")
    assert result == b"AB|"
    assert driver.store.log()[0][1].inputs == {"text": "ab|"}


def test_only_a_stream_output_into_a_stream_input_may_start_early() -> None:
    class Mixed(CompositeTask):
        brain, echo, voice = LLM(), Echo(), Voice()

        def invoke(self, q):
            text = self.brain(prompt=q).text
            return self.echo(x=text), self.voice(text=self.echo(x="b").s), self.voice(text=text), self.echo(x=[text])

    first = Pass([], {})
    first.run(Mixed(), "a")
    edges = [next(iter(n.inputs.values())) for n in first.new_nodes[1:]]
    assert [e.stream for e in (edges[0], edges[2], edges[3], edges[4][0])] == [False, False, True, False]


# ------------------------------------------------------------ out of composites


@pytest.mark.parametrize("breaks", [False, True])
def test_a_stream_out_of_a_composite(breaks: bool) -> None:
    class Inner(CompositeTask):
        brain, echo = LLM(), Echo()

        def invoke(self, x: str) -> Stream[str]:
            if breaks and self.echo(x=x).s == "a b":
                x = "c d"
            return self.brain(prompt=x).text

    class Outer(CompositeTask):
        inner, voice = Inner(), Voice()

        def invoke(self, q):
            text = self.inner(q)
            return Answer(text=text, audio=self.voice(text=text).audio)

    async def use(head, driver):
        return await head.whole("text"), await head.whole("audio")

    for seed in range(10):
        got, final = drive(Outer(), "a b", use, seed)
        want = "c d|" if breaks else "a b|"
        assert got == (want, want.upper().encode())
        assert final == Answer(text=want, audio=want.upper().encode())


# ------------------------------------------------------------ where a stream field comes from


class Part(BaseModel):
    text: Stream[str]
    words: Stream[list[str]] = []


class Parts(BaseModel):
    parts: list[Part]
    title: str = ""


class Lister(UnitTask):
    class Out(BaseModel):
        words: Stream[list[str]]

    def __call__(self, *, x: Any) -> Out:
        raise NotImplementedError


class Sections(CompositeTask):
    brain, lister = LLM(), Lister()

    def invoke(self, q):
        words = self.lister(x=q).words
        return Parts(parts=[Part(text=self.brain(prompt=p).text, words=words) for p in q], title="t")


def test_each_stream_field_knows_its_output_open_or_whole() -> None:
    first = Pass([], {})
    value = first.run(Sections(), ["a", "b"]).value
    tokens = [n.token for n in first.new_nodes]
    want = {
        "parts.0.text": (tokens[1], "text"),
        "parts.0.words": (tokens[0], "words"),
        "parts.1.text": (tokens[2], "text"),
        "parts.1.words": (tokens[0], "words"),
    }
    assert stream_fields(value, first) == want
    assert streams_only(value)
    assert not begins(value, first, set(), set())
    assert begins(value, first, set(), {(tokens[2], "text")})

    texts = [{"text": "first, quite a long text indeed", "tokens": 1}, {"text": "|", "tokens": 1}]
    outputs = [{"words": ["x", "y"]}, *texts]
    results = {t: Result(i + 5, o) for i, (t, o) in enumerate(zip(tokens, outputs, strict=True))}
    last = Pass(first.new_nodes, results)
    final = last.run(Sections(), ["a", "b"]).value
    assert last.complete
    assert stream_fields(final, last) == want
    same_response(value, final, last)
    stored = decode_value(encode(stored_response("r", final, want, {tokens[0]: 0, tokens[1]: 1, tokens[2]: 0})))
    assert stored["title"] == "t"
    assert stored["parts"][0]["text"] == StreamRef("r", tokens[1], 1, "text")
    assert stored["parts"][1]["words"] == StreamRef("r", tokens[0], 0, "words")


def test_a_value_that_user_code_changed_comes_from_no_output() -> None:
    class Changed(CompositeTask):
        brain, lister = LLM(), Lister()

        def invoke(self, q):
            words = self.lister(x=q).words
            words.append("z")
            return Parts(parts=[Part(text=self.brain(prompt=q).text.upper(), words=words)])

    tokens, log, results = [], (), {}
    outputs = [{"words": ["x"]}, {"text": "abc", "tokens": 1}]
    while True:
        step = Pass(log, results)
        outcome = step.run(Changed(), "q")
        if step.complete:
            break
        log = (*log, *step.new_nodes)
        tokens = [n.token for n in log]
        results = {t: Result(i + 1, outputs[i]) for i, t in enumerate(tokens)}
    assert stream_fields(outcome.value, step) == {}
    assert stored_response("r", outcome.value, {}, {}) == {
        "parts": [{"text": "ABC", "words": ["x", "z"]}],
        "title": "",
    }


def test_a_pending_value_in_a_plain_place_keeps_the_response_back() -> None:
    class Loose(BaseModel):
        extra: dict[str, Any]
        text: Stream[str] = ""

    def invoke(self, q):
        return Loose(extra={"deep": [self.brain(prompt=q).text]}, text=self.brain(prompt=q).text)

    first = Pass([], {})
    value = first.run(composite(invoke), "q").value
    assert not streams_only(value)
    tokens = [n.token for n in first.new_nodes]
    assert not begins(value, first, set(tokens), {(t, "text") for t in tokens})


def test_a_stream_field_takes_no_pending_value_of_another_type() -> None:
    task = composite(lambda self, q: Answer(text=self.lister(x=q).words), lister=Lister())
    log = Pass([], {})
    assert log.run(task, "q").kind == "wait"
    outcome = Pass(log.new_nodes, {log.new_nodes[0].token: Result(1, {"words": ["a"]})}).run(task, "q")
    assert "valid string" in str(outcome.error)
