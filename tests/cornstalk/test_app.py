"""Apps: what may be one, loading from source, errors with lines, requests of clients."""

from __future__ import annotations

import gc
import linecache
import re
import sys
import traceback
import weakref
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, Upload
from cornstalk.app import load_app, unload_app
from cornstalk.blame import failure
from cornstalk.errors import AppError, BadInput, TaskError
from cornstalk.messages import Error
from cornstalk.record import Pass
from tests.cornstalk.model.apps import LLM, Echo, composite

SOURCE = """
from __future__ import annotations
from pydantic import BaseModel
from cornstalk import App, CompositeTask, Stream
from tests.cornstalk.model.apps import LLM

class Question(BaseModel):
    prompt: str

class Answer(BaseModel):
    text: Stream[str]

class Inner(CompositeTask):
    brain = LLM(model="small")
    def invoke(self, prompt: str) -> str:
        return self.brain(prompt=prompt).text

class Ask(CompositeTask):
    brain, inner = LLM(model="big"), Inner()
    def invoke(self, q: Question) -> Answer:
        if q.prompt == "boom":
            raise LookupError("no such thing")
        return Answer(text=self.brain(prompt=q.prompt).text)

app = App("ask", Ask())
"""


class Options(BaseModel):
    beams: int = 1


class Question(BaseModel):
    prompt: str
    audio: Upload | None = None
    options: Options = Options()


class Answer(BaseModel):
    text: Stream[str]


class Ask(CompositeTask):
    brain = LLM()

    def invoke(self, q: Question) -> Answer:
        return Answer(text=self.brain(prompt=q.prompt).text)


def test_an_app_knows_its_models_and_components() -> None:
    app = App("ask", Ask())
    assert (app.request_model, app.response_model, app.version) == (Question, Answer, "")
    assert list(app.components()) == [LLM().component]


def test_an_upload_is_a_binary_string_in_the_schema_and_an_instance_in_the_request() -> None:
    schema = Question.model_json_schema()["properties"]["audio"]
    assert schema["anyOf"][0] == {"type": "string", "format": "binary"}
    upload = Upload("d", 3, "audio/wav")
    assert App("ask", Ask()).request({"prompt": "x", "audio": upload}).audio == upload


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "x", "promt": "y"}, "promt"),
        ({"prompt": "x", "options": {"beam": 2}}, "options.beam"),
        ({"prompt": "x", "options": {"beams": "many"}}, "options.beams"),
        ({"prompt": "x", "audio": "file.wav"}, "audio"),
        (["prompt"], ""),
        (None, ""),
    ],
)
def test_a_request_that_cannot_be_meant_names_its_field(data: Any, field: str) -> None:
    with pytest.raises(BadInput) as error:
        App("ask", Ask()).request(data)
    assert error.value.field == field
    assert error.value.status == 422


class Untyped(CompositeTask):
    def invoke(self, q):
        return q


class Text(CompositeTask):
    def invoke(self, q: str) -> str:
        return q


class Two(CompositeTask):
    def invoke(self, q: Question, more: int) -> Answer:
        return Answer(text="")


class Unknown(CompositeTask):
    def invoke(self, q: Questoin) -> Answer:  # noqa: F821
        return Answer(text="")


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        ("Ask me", Ask(), "lower-case letters"),
        ("", Ask(), "lower-case letters"),
        ("a.b", Ask(), "lower-case letters"),
        ("ask", Ask, "async function, got"),
        ("ask", LLM(), "async function, got LLM"),
        ("ask", Untyped(), "takes one request that is a pydantic model"),
        ("ask", Text(), "takes one request that is a pydantic model"),
        ("ask", Two(), "takes one request"),
        ("ask", Unknown(), "Questoin"),
    ],
)
def test_what_cannot_be_an_app(name: str, task: Any, message: str) -> None:
    with pytest.raises(AppError, match=message):
        App(name, task)


class Both(CompositeTask):
    brain = LLM(model="big")

    def invoke(self, q: Question) -> Answer:
        return Answer(text=self.brain(prompt=q.prompt).text)


class Desk:
    """A serve that is a method: its tasks are attributes."""

    ask = Both()
    others: ClassVar[dict[str, CompositeTask]] = {"more": Both()}

    async def serve(self, request: Question) -> Answer:
        return Answer(text="")


def test_the_tasks_of_serve_are_found_where_it_sees_them() -> None:
    app = App("desk", Desk().serve)
    assert app.task.named_tasks().keys() >= {"ask", "others['more']"}
    assert app.components() == Both().unit_tasks()
    assert (app.request_model, app.response_model) == (Question, Answer)


def test_a_composite_is_awaited_in_serve_and_called_in_invoke_only() -> None:
    with pytest.raises(RuntimeError, match="awaited inside serve"):
        Both()(Question(prompt="x"))


def test_serve_needs_types() -> None:
    async def serve(request):  # type: ignore[no-untyped-def]
        return Answer(text="")

    with pytest.raises(AppError, match="takes one request"):
        App("desk", serve)


# ------------------------------------------------------------ loading


def test_an_app_is_loaded_from_source_as_often_as_wanted() -> None:
    one, two = load_app(SOURCE, "apps/ask.py"), load_app(SOURCE)
    assert one.name == "ask"
    assert one.version == two.version
    assert len(one.version) == 12
    assert set(one.version) <= set("0123456789abcdef")
    assert load_app(SOURCE + "\n").version != one.version
    assert list(one.components()) == list(two.components())
    step = Pass([], {})
    assert step.run(two.task, two.request({"prompt": "x"})).kind == "done"
    assert step.new_nodes[0].line == "app.py:23"


def test_a_users_error_shows_the_users_line() -> None:
    app = load_app(SOURCE, "ask.py")
    error = Pass([], {}).run(app.task, app.request({"prompt": "boom"})).error
    assert error is not None
    assert failure(error) == Error(code="app_failed", message="LookupError: no such thing (ask.py:22)")
    shown = "".join(traceback.format_exception(error))
    assert 'raise LookupError("no such thing")' in shown
    wrong = Pass([], {}).run(composite(lambda self, q: self.brain(prompt=5)), "q").error
    assert wrong is not None
    assert re.search(r"TypeError: LLM: prompt: expected str, got int \(test_app.py:\d+\)", failure(wrong).message)
    assert failure(TaskError(Error(code="x", message="y", node="n"))) == Error(code="x", message="y", node="n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("class Ask(", "class Ask(("), r"ask.py:1[89]: "),
        (("from pydantic", "from pydantics"), "ask.py:3: ModuleNotFoundError: No module named 'pydantics'"),
        (('app = App("ask"', 'api = App("ask"'), r"ask.py defines no app: it needs a line `app = App"),
        (('App("ask", Ask())', "5"), "defines no app"),
        (('App("ask", Ask())', 'App("ask", Ask(1))'), "ask.py:25: TypeError"),
        (('App("ask", Ask())', "1 / 0"), "ask.py:25: ZeroDivisionError: division by zero"),
        (('App("ask", Ask())', "exit(3)"), "ask.py:25: SystemExit: 3"),
        (("q: Question", "q: str"), "takes one request"),
        (
            ('brain = LLM(model="small")', 'brain = LLM(modle="small")'),
            "ask.py:14: ValidationError: modle: Extra inputs are not permitted$",
        ),
        (("app =", "class Own(LLM): pass\nAsk.own = Own()\napp ="), "ask.py: unit task Own is defined in the app file"),
    ],
)
def test_an_app_file_that_cannot_be_loaded_says_where(change: tuple[str, str], message: str) -> None:
    with pytest.raises(AppError, match=message):
        load_app(SOURCE.replace(*change), "ask.py")


def test_equal_unit_tasks_of_two_apps_are_one_component() -> None:
    class Both(Ask):
        echo = Echo()

    assert App("ask", Ask()).components().keys() < App("both", Both()).components().keys()


def test_an_app_that_is_unloaded_leaves_nothing_and_goes_on() -> None:
    before = set(sys.modules), set(linecache.cache)
    app = load_app(SOURCE + "# unloaded")
    assert Pass([], {}).run(app.task, app.request({"prompt": "x"})).error is None
    unload_app(app)
    assert (set(sys.modules), set(linecache.cache)) == before
    assert Pass([], {}).run(app.task, app.request({"prompt": "x"})).error is None
    gone = weakref.ref(app)
    del app
    gc.collect()
    assert gone() is None


def test_an_app_that_was_loaded_again_is_not_unloaded_with_its_older_self() -> None:
    older, newer = load_app(SOURCE), load_app(SOURCE)
    unload_app(older)
    assert sys.modules[type(newer.task).__module__].app is newer  # type: ignore[attr-defined]
    unload_app(newer)
