"""Apps: a name and the task that answers. An app file is Python that defines `app = App("name", Task())`."""

from __future__ import annotations

import hashlib
import inspect
import linecache
import re
import sys
import traceback
import types
from collections.abc import Callable, Coroutine
from typing import Any, Final, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cornstalk.errors import AppError, BadInput, described
from cornstalk.lint import Finding, lint
from cornstalk.task import CompositeTask, UnitTask, pending_result

APP_FILE: Final = "<app "
"""How the file name of an app begins in tracebacks: "<app version>/stem.py"."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")


Serve = Callable[[Any], Coroutine[Any, Any, Any]]


class App:
    """One app: a composite task, or an `async def serve(request)` that awaits several.

    The tasks of `serve` are those in its module's globals, or in the attributes of the object it is a method of.
    Raises AppError when it cannot serve: wrong name, no typed request or response, no task.
    """

    def __init__(self, name: str, task: CompositeTask | Serve) -> None:
        if not _NAME.match(name):
            raise AppError(f"app name {name[:64]!r}: lower-case letters, digits, '-' and '_', at most 64")
        self.name = name
        self.serve: Serve | None = None
        self.task: CompositeTask
        if inspect.iscoroutinefunction(task):
            self.serve, self.task = task, _Served(task)
        elif isinstance(task, CompositeTask):
            self.task = task
        else:
            got = type(task).__name__
            raise AppError(f"app {name!r}: the second argument is a CompositeTask or an async function, got {got}")
        self.version = ""
        """12 hex digits of its source; empty outside `load_app`."""
        self.warnings: tuple[Finding, ...] = ()
        """What `lint` says about its source."""
        self.request_model, self.response_model = _models(name, self.task, self.serve or self.task.invoke)

    def components(self) -> dict[str, UnitTask]:
        """Component id -> task, of everything the app may call."""
        return self.task.unit_tasks()

    def request(self, data: Any) -> BaseModel:
        """The request that a client's data means. Raises BadInput which names the field, also for an unknown one."""
        try:
            return self._validated(data)
        except ValidationError as error:
            raise self._bad_input(error.errors(include_url=False, include_context=False)[0]) from error

    def check_part(self, data: dict[str, Any]) -> None:
        """Raises BadInput for what is wrong in some of the fields; that others are missing is no mistake here."""
        try:
            self._validated(data)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                if problem["loc"] and problem["loc"][0] in data:
                    raise self._bad_input(problem) from error

    def _validated(self, data: Any) -> BaseModel:
        try:
            return self.request_model.model_validate(data, extra="forbid", by_alias=True, by_name=True)
        except (ValidationError, RecursionError):
            raise
        except Exception as error:
            raise AppError(f"app {self.name!r}: a validator of its request model raised {described(error)}") from error

    def _bad_input(self, problem: ErrorDetails) -> BadInput:
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            return BadInput(f"no such field; {self.name} takes {', '.join(self.request_model.model_fields)}", field)
        got = "" if problem["type"] == "missing" else f", got {_shown(problem['input'])}"
        return BadInput(problem["msg"] + got, field)


class _Served(CompositeTask):
    """Holds the tasks that a `serve` may await, under the names it knows them by."""

    def __init__(self, serve: Serve) -> None:
        owner = getattr(serve, "__self__", None)
        names = vars(owner) | vars(type(owner)) if owner is not None else inspect.unwrap(serve).__globals__
        for name, value in names.items():
            if not name.startswith("__") and isinstance(value, (CompositeTask, UnitTask, list, tuple, dict)):
                setattr(self, name, value)


def _shown(value: Any) -> str:
    """What came instead of what was expected, short."""
    if value is None or type(value) in (str, int, float, bool):
        text = repr(value)
        return text if len(text) <= 40 else text[:37] + "..."
    names: dict[type, str] = {dict: "an object", list: "a list"}
    return names.get(type(value), type(value).__name__)


def _models(name: str, task: CompositeTask, function: Callable[..., Any]) -> tuple[type[BaseModel], type[BaseModel]]:
    try:
        for part in (task, *task.named_tasks().values()):
            if isinstance(part, CompositeTask):
                pending_result(type(part).invoke)
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise AppError(f"app {name!r}: a type of {function.__name__} cannot be read: {error}") from error
    names = list(inspect.signature(function).parameters)
    where = f"app {name!r}: {function.__qualname__}"
    request = _model(hints.get(names[0]) if len(names) == 1 else None, f"{where} takes one request")
    return request, _model(hints.get("return"), f"{where} returns a response")


def _model(hint: Any, what: str) -> type[BaseModel]:
    if inspect.isclass(hint) and issubclass(hint, BaseModel):
        return hint
    raise AppError(f"{what} that is a pydantic model: say so in its types")


def load_app(source: str, name_hint: str = "app") -> App:
    """Runs the source of an app file in a module of its own and returns its `app`. `name_hint` is its file's name.

    Equal sources have equal versions. Raises AppError with the line, also for what `lint` calls an error.
    """
    version = hashlib.blake2b(source.encode(), digest_size=6).hexdigest()
    stem = name_hint.rpartition("/")[2].removesuffix(".py") or "app"
    filename = f"{APP_FILE}{version}>/{stem}.py"
    module = types.ModuleType(_module(version))
    module.__file__ = filename
    sys.modules[module.__name__] = module  # types in annotations are looked up there
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)  # for tracebacks
    try:
        code = compile(source, filename, "exec")
        warnings = _warnings(source, stem)
        exec(code, module.__dict__)
        app = _found(module, stem)
    except BaseException as error:
        del sys.modules[module.__name__], linecache.cache[filename]
        if not isinstance(error, (Exception, SystemExit)):
            raise
        if isinstance(error, AppError):
            raise AppError(str(error), error.line or _line(error, filename)) from error
        line = _line(error, filename)
        where = f"{stem}.py:{line}" if line else f"{stem}.py"
        raise AppError(f"{where}: {_what(error)}", line) from error
    app.version, app.warnings = version, warnings
    return app


def unload_app(app: App) -> None:
    """Lets go of what `load_app` keeps of an app. Requests under way go on: their functions hold what they use."""
    module = sys.modules.get(_module(app.version))
    if module is not None and getattr(module, "app", None) is app:  # else its source was loaded again
        del sys.modules[module.__name__]
        linecache.cache.pop(str(module.__file__), None)


def _module(version: str) -> str:
    return f"cornstalk_app_{version}"


def _warnings(source: str, stem: str) -> tuple[Finding, ...]:
    findings = lint(source)
    for finding in findings:
        if finding.severity == "error":
            raise AppError(f"{stem}.py:{finding.line}: {finding.message}", finding.line)
    return tuple(findings)


def _found(module: types.ModuleType, stem: str) -> App:
    app = getattr(module, "app", None)
    if not isinstance(app, App):
        raise AppError(f'{stem}.py defines no app: it needs a line `app = App("name", Task())`')
    for task in app.components().values():
        if type(task).__module__ == module.__name__:
            raise AppError(
                f"{stem}.py: unit task {type(task).__name__} is defined in the app file, where no worker can import "
                "it: put it in a package"
            )
    return app


def _line(error: BaseException, filename: str) -> int:
    """The line of the app file that is to blame; 0 if none is."""
    if isinstance(error, SyntaxError) and error.filename == filename:
        return error.lineno or 0
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == filename]
    return (lines[-1] or 0) if lines else 0


def _what(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        return f"ValidationError: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return described(error)
