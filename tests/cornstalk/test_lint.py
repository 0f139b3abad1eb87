"""What the lint refuses, what it warns of, what it lets pass; and that a deploy asks it."""

from __future__ import annotations

import textwrap

import pytest

from cornstalk.app import load_app
from cornstalk.errors import AppError
from cornstalk.lint import Finding, lint

HEAD = """
import contextlib, datetime, functools, logging, os, random, secrets, time, uuid
import numpy as np
from datetime import date, datetime as dt
from functools import lru_cache
from random import choice
from pydantic import BaseModel
from cornstalk import App, CompositeTask, TaskError, now, rng
from cornstalk.tasks.null import Null
log = logging.getLogger("app")
class Ask(BaseModel):
    text: str = ""
class Reply(BaseModel):
    text: str = ""
class Main(CompositeTask):
    step = Null(name="lint")
    def invoke(self, q: Ask) -> Reply:
"""
TAIL = """
app = App("lint", Main())
"""


def app_with(body: str, before: str = "") -> str:
    inside = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return HEAD.replace("class Main(", f"{textwrap.dedent(before)}\nclass Main(") + inside + TAIL


def codes(body: str, before: str = "") -> list[tuple[str, str]]:
    return [(f.severity, f.code) for f in lint(app_with(body, before))]


ERRORS = {
    "bare-except": [
        "try: self.step()\nexcept: pass",
        "try: self.step()\nexcept BaseException as e: log = e",
        "try: self.step()\nexcept (ValueError, BaseException): return 1",
        "with contextlib.suppress(BaseException): self.step()",
        "def inner():\n    try: self.step()\n    except: return 1\ninner()",
    ],
    "leaving-finally": [
        "try: self.step()\nfinally: return 1",
        "for i in '12':\n    try: self.step()\n    finally: continue",
        "for i in '12':\n    try: self.step()\n    finally:\n        if i: break",
        "try: self.step()\nfinally:\n    with q: return 2",
        "try: self.step()\nfinally:\n    try: pass\n    except ValueError: return 2",
        "try: self.step()\nfinally:\n    match q:\n        case 1: return 2",
    ],
    "chance": [
        "self.step(text=str(time.time()))",
        "return dt.now()",
        "return datetime.datetime.now()",
        "return date.today()",
        "return random.random()",
        "return choice('ab')",
        "return random.Random()",
        "return np.random.rand()",
        "return uuid.uuid4().hex",
        "return os.urandom(4)",
        "return secrets.token_hex()",
        "return [time.perf_counter() for _ in q]",
    ],
    "endless-retry": [
        "while True:\n    try: return int(q)\n    except ValueError: continue",
        "while 1:\n    try: return int(q)\n    except ValueError: pass",
        "while True:\n    if q:\n        try: return int(q)\n        except (TypeError, ValueError): q = q",
    ],
}
WARNINGS = {
    "set-order": [
        "for w in set(q.text): self.step(text=w)",
        "return [self.step(text=w) for w in {'a', 'b'}]",
        "self.step(texts=list({w for w in q.text}))",
        "return ','.join(frozenset(q.text))",
    ],
    "global": ["global count\ncount = 1"],
    "cache": ["@lru_cache\ndef f(): return 1\nreturn f()", "@functools.cache\ndef f(): return 1\nreturn f()"],
    "print": ["print(q)", "log.info('%s', q)", "logging.warning('x')"],
    "outside": ["open('x')", "os.system('ls')", "time.sleep(1)"],
    "hidden-look": ["return type(q) is str", "return id(q)"],
}
SOUND = [
    "try: self.step()\nexcept Exception: pass",
    "try: self.step()\nexcept TaskError: return 1",
    "try: self.step()\nexcept BaseException:\n    raise",
    "try: self.step()\nfinally:\n    for i in q: break",
    "try: self.step()\nfinally:\n    def inner(): return 1",
    "while True:\n    try: return int(self.step(text=q).digest)\n    except ValueError: continue",
    "while True:\n    try: return int(q)\n    except ValueError: return 1",
    "for _ in range(3):\n    try: return int(q)\n    except ValueError: continue",
    "return now(), rng().random()",
    "random = rng()\nreturn q.random.random()",
    "return random.Random(3), time.gmtime(0), uuid.uuid5(uuid.NAMESPACE_DNS, 'x'), datetime.datetime(2026, 1, 1)",
    "for w in sorted(set(q.text)): self.step(text=w)",
    "return isinstance(q, str), type('New', (), {}), self.log.info(q), self.open(q)",
]


@pytest.mark.parametrize(("code", "body"), [(c, b) for c, bodies in ERRORS.items() for b in bodies])
def test_errors(code: str, body: str) -> None:
    assert codes(body) == [("error", code)]


@pytest.mark.parametrize(("code", "body"), [(c, b) for c, bodies in WARNINGS.items() for b in bodies])
def test_warnings(code: str, body: str) -> None:
    assert codes(body) == [("warning", code)]


@pytest.mark.parametrize("body", SOUND)
def test_what_is_sound_passes(body: str) -> None:
    assert codes(body) == []


def test_functions_that_invoke_names_are_looked_at_and_others_are_not() -> None:
    helper = """
    def seen(): return deeper()
    def deeper(): return random.random()
    def unseen(): return random.random()
    async def serve(q):
        try: return time.time()
        except: pass
    """
    assert codes("return seen()", helper) == [("error", "chance")]
    assert codes("return q", helper) == []


def test_what_helpers_ask_the_type_of_is_their_own_affair() -> None:
    helper = "def kind(node): return type(node)"
    assert codes("return kind(q)", helper) == []


def test_derived_composites_are_looked_at_but_not_how_they_are_made() -> None:
    source = """
    import cornstalk as cs, random
    class Base(cs.CompositeTask):
        def __init__(self): self.chance = random.random()
    class Derived(Base):
        def invoke(self, q): return self.helper(q)
        def helper(self, q): return random.random()
    class Other:
        def invoke(self, q): return random.random()
    """
    assert [(f.line, f.code) for f in lint(textwrap.dedent(source))] == [(7, "chance")]


def test_findings_come_by_line_and_read_well() -> None:
    findings = lint(app_with("print(q)\nreturn random.random()"))
    assert [f.code for f in findings] == ["print", "chance"]
    assert findings[0].line + 1 == findings[1].line
    assert str(Finding(7, "chance", "no", "error")) == "line 7: error: no [chance]"
    with pytest.raises(SyntaxError):
        lint("def")


@pytest.mark.parametrize("body", [bodies[0] for bodies in ERRORS.values()])
def test_loading_refuses_errors_and_names_the_line(body: str) -> None:
    source = app_with(body)
    line = lint(source)[0].line
    with pytest.raises(AppError, match=f"^talk.py:{line}: ") as refused:
        load_app(source, "apps/talk.py")
    assert refused.value.line == line


def test_loading_keeps_warnings() -> None:
    app = load_app(app_with("print(q)\nreturn Reply()"))
    assert [w.code for w in app.warnings] == ["print"]
    assert load_app(app_with("return Reply()")).warnings == ()
