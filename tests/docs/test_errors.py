"""docs/errors.md names every code that there is, with its HTTP status, and none that there is not."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import Final

import gateway
from cornstalk import errors
from cornstalk.cli.errors import FAILED, TIMED_OUT, UNREACHABLE, USAGE
from cornstalk.media.policy import STATUS_OF
from tests.docs.blocks import DOCS
from tests.stack import ROOT

ROW: Final = re.compile(r"^\| `([a-z_]+)` \| ([^|]*) \| [^|]+ \| [^|]+ \|$", re.MULTILINE)
SOURCES: Final = ("cornstalk", "gateway", "components", "dispatcher", "broker")
ELSEWHERE: Final = ("cornstalk/cli/", "cornstalk/testing/", "components/null.py")
BY_THE_FRAMEWORK: Final = {"not_found": {404}, "method_not_allowed": {405}}
NEVER_SENT: Final = {"internal", "request_failed", "unreachable", "timed_out", "gateway_error", "record_error"}


_PLACES: Final = {"_answer": (1,), "EngineError": (1,), "_failed": (2,)}
"""Where a code stands among the arguments of a call."""


def page() -> dict[str, set[int]]:
    """Code -> the HTTP statuses that the page gives it."""
    text = (DOCS / "errors.md").read_text()
    return {code: {int(number) for number in re.findall(r"\b[45]\d\d\b", status)} for code, status in ROW.findall(text)}


def classes(root: type[errors.CornstalkError] = errors.CornstalkError) -> Iterator[type[errors.CornstalkError]]:
    yield root
    for kind in root.__subclasses__():
        yield from classes(kind)


def typed() -> dict[str, set[int]]:
    """Code -> statuses, of the errors that have a class."""
    for module in pkgutil.iter_modules(gateway.__path__, "gateway."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: dict[str, set[int]] = {}
    for kind in classes():
        if kind.__module__.partition(".")[0] in ("cornstalk", "gateway"):
            found.setdefault(kind.code, set()).add(kind.status)
    return found


def spelled() -> set[str]:
    """Codes that the sources spell where they make an Error or an EngineError, or answer over HTTP."""
    found = set()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.relative_to(ROOT).as_posix().startswith(ELSEWHERE):
                found |= set(_spelled(ast.parse(path.read_text())))
    return found | STATUS_OF.keys()


def _spelled(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        values = [k.value for k in call.keywords if k.arg == "code" and call.func.id in ("Error", "EngineError")]
        values += [call.args[at] for at in _PLACES.get(call.func.id, ()) if at < len(call.args)]
        yield from (v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))


def test_every_typed_error_stands_there_with_its_status() -> None:
    told = page()
    for code, statuses in typed().items():
        assert code in told, f"docs/errors.md has no row for {code!r} ({statuses})"
        if code not in NEVER_SENT:
            assert statuses <= told[code], f"docs/errors.md gives {code!r} {told[code]}, the sources {statuses}"


def test_every_other_code_stands_there() -> None:
    assert spelled() - page().keys() == set()
    for code, status in STATUS_OF.items():
        assert status in page()[code]


def test_no_code_stands_there_that_there_is_not() -> None:
    known = typed().keys() | spelled() | BY_THE_FRAMEWORK.keys()
    assert page().keys() - known == set()
    for code, statuses in BY_THE_FRAMEWORK.items():
        assert page()[code] == statuses


def test_exit_codes_of_the_command() -> None:
    text = (DOCS / "quickstart.md").read_text()
    told = dict(re.findall(r"^\| (\d) \| (\w+)", text, re.MULTILINE))
    assert told == {
        "0": "done",
        str(FAILED): "failed",
        str(USAGE): "usage",
        str(UNREACHABLE): "cannot",
        str(TIMED_OUT): "timed",
    }
