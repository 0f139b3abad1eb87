"""The tables of docs/record-and-replay.md, row by row: what is legal gives the answer, what raises does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from cornstalk import CompositeTask, TaskError, Tensor, UnitTask, wait
from cornstalk.app import load_app
from cornstalk.tasks.null import Null, NullTensor
from cornstalk.testing import run_recorded
from tests.docs.blocks import DOCS

PAGE = (DOCS / "record-and-replay.md").read_text()
ENGINES: dict[Any, Callable[..., Any]] = {
    Null: lambda text, fail, **_: {"digest": f"<{text}>"} if not fail else 1 / 0,
    NullTensor: lambda **_: {"tensor": object(), "digest": "t"},
}


class Picky(UnitTask):
    class Out(BaseModel):
        caption: str | None

    def __call__(self, *, text: str) -> Out:
        raise NotImplementedError


def composite(invoke: Callable[..., Any]) -> CompositeTask:
    def typed(self: Any, q: str) -> str:
        return str(invoke(self, q))

    tasks = {"mark": Null(name="a"), "make": NullTensor(name="b"), "pick": Picky()}
    made: CompositeTask = type("Page", (CompositeTask,), {**tasks, "max_calls": 20, "invoke": typed})()
    return made


def given(invoke: Callable[..., Any]) -> Any:
    return run_recorded(composite(invoke), "q", {**ENGINES, Picky: lambda text: {"caption": None}}).response


def row(start: str) -> str:
    """A row of one of the page's tables."""
    [found] = [line for line in PAGE.splitlines() if line.startswith(f"| {start}")]
    return found


def retried(self: Any, q: str) -> str:
    for fail in ("raise", ""):
        try:
            return str(self.mark(text=q, fail=fail).digest.upper())
        except TaskError:
            continue
    raise AssertionError


def looked(self: Any, q: str) -> str:
    return "yes" if self.mark(text=q).digest == "<q>" else "no"


@pytest.mark.parametrize(
    ("start", "invoke", "answer"),
    [
        ("`self.b(", lambda self, q: self.mark(text=self.mark(text=q).digest).digest, "<<q>>"),
        ("`[self.a(", lambda self, q: "".join([self.mark(text=i).digest for i in "ab"]), "<a><b>"),
        ("`if out", looked, "yes"),
        ("`wait(out)`", lambda self, q: wait(self.mark(text=q).digest), "<q>"),
        ("reading an output typed", lambda self, q: self.pick(text=q).caption is None, "True"),
        ("`try: ... except TaskError:`", retried, "<Q>"),
    ],
)
def test_legal(start: str, invoke: Callable[..., Any], answer: str) -> None:
    assert row(start)
    assert given(invoke) == answer


def in_a_thread(self: Any, q: str) -> str:
    found: list[Exception] = []

    def call() -> None:
        try:
            self.mark(text=q)
        except Exception as error:
            found.append(error)

    worker = threading.Thread(target=call)
    worker.start()
    worker.join()
    raise found[0] if found else AssertionError


kept: list[Any] = []


def stale(self: Any, q: str) -> str:
    kept.append(self.mark(text=q).digest)
    return str(kept[0].upper()) if len(kept) > 1 else str(wait(kept[0]))


def endless(self: Any, q: str) -> str:
    while True:
        self.mark(text=q)


def tensor_read(self: Any, q: str) -> str:
    made: Tensor = self.make(text=q).tensor
    return str(made[0])


@pytest.mark.parametrize(
    ("start", "invoke"),
    [
        ("`self.x = ...`", lambda self, q: setattr(self, "x", q)),
        ("a result kept in a global", stale),
        ("tasks called in a thread", in_a_thread),
        ('`f"{self.mark(text=t)}"`', lambda self, q: f"{self.mark(text=q)}"),
        ("more than `max_calls`", endless),
        ("a task that is no attribute", lambda self, q: Null(name="other")(text=q).digest),
        ("a `Tensor`", tensor_read),
    ],
)
def test_raises(start: str, invoke: Callable[..., Any]) -> None:
    with pytest.raises(Exception) as caught:
        given(invoke)
    assert f"`{type(caught.value).__name__}`" in row(start)


def test_an_invoke_that_is_no_plain_function() -> None:
    async def invoke(self: Any, q: str) -> str:
        return q

    with pytest.raises(TypeError):
        type("Page", (CompositeTask,), {"invoke": invoke})
    assert "`TypeError`" in row("`async def invoke`")


APP = """
import random, time, uuid
from pydantic import BaseModel
from cornstalk import App, CompositeTask
from cornstalk.tasks.null import Null

class Line(BaseModel):
    text: str

class Task(CompositeTask):
    mark = Null()

    def invoke(self, line: Line) -> Line:
        text = line.text
{body}
        return Line(text=self.mark(text=text).digest)

app = App("page", Task())
"""


@pytest.mark.parametrize(
    ("start", "body"),
    [
        ("`random()`", "text = str(random.random())"),
        ("`random()`", "text = str(time.time())"),
        ("`random()`", "text = str(uuid.uuid4())"),
        ("`except:`", "try:\n    text = text.upper()\nexcept:\n    pass"),
        ("`except:`", "try:\n    text = text.upper()\nfinally:\n    return line"),
        (
            "`while True:`",
            "while True:\n    try:\n        text = text[1:]\n        break\n    except Exception:\n        continue",
        ),
    ],
)
def test_refused_at_deploy(start: str, body: str) -> None:
    source = APP.format(body="\n".join(f"        {line}" for line in body.splitlines()))
    with pytest.raises(Exception) as caught:
        load_app(source)
    assert f"`{type(caught.value).__name__}` at deploy" in row(start)
