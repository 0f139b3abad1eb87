"""What a deploy says about the source of an app: constructs that a pass cannot see, or cannot survive.

`invoke` runs many times for one request and must make the same calls each time; a graph break unwinds it with a
BaseException. Looked at is what runs in a pass: the methods of composite tasks, and the functions of the module that
these name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from cornstalk.lint_calls import Names, chance, effect

Severity = Literal["error", "warning"]

_LEAVES: Final = (ast.Return, ast.Break, ast.Raise)


class Finding(NamedTuple):
    """One place in the source. An "error" refuses a deploy."""

    line: int
    code: str
    message: str
    severity: Severity

    def __str__(self) -> str:
        return f"line {self.line}: {self.severity}: {self.message} [{self.code}]"


def lint(source: str) -> list[Finding]:
    """All findings, by line. Raises SyntaxError."""
    module = ast.parse(source)
    names = Names(module)
    methods = _methods(module, names)
    found = {finding for function in methods for finding in _Function(names).findings(function)}
    for function in _helpers(module, methods):  # what `type` is asked of there is mostly no result
        found |= {finding for finding in _Function(names).findings(function) if finding.code != "hidden-look"}
    return sorted(found)


def _methods(module: ast.Module, names: Names) -> list[ast.FunctionDef]:
    """Those of composite tasks, but not how these are made."""
    return [
        member
        for composite in _composites(module, names)
        for member in composite.body
        if isinstance(member, ast.FunctionDef) and member.name != "__init__"
    ]


def _helpers(module: ast.Module, methods: list[ast.FunctionDef]) -> list[ast.FunctionDef]:
    """The functions of the module that these name, directly or by way of others."""
    functions = {n.name: n for n in module.body if isinstance(n, ast.FunctionDef)}
    todo, reached = list(methods), list[ast.FunctionDef]()
    while todo:
        loads = {n.id for n in ast.walk(todo.pop()) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        new = [f for name, f in functions.items() if name in loads and f not in reached]
        reached += new
        todo += new
    return reached


def _composites(module: ast.Module, names: Names) -> list[ast.ClassDef]:
    """The classes that derive from CompositeTask, by way of others in the module too."""
    known = {"cornstalk.CompositeTask", "cornstalk.task.CompositeTask", "CompositeTask"}
    found: list[ast.ClassDef] = []
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and any(names.full(base) in known for base in node.bases):
            found.append(node)
            known.add(node.name)
    return found


class _Function:
    """The findings in one function and those within it."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def findings(self, function: ast.FunctionDef) -> Iterator[Finding]:
        for node in ast.walk(function):
            match node:
                case ast.Try() | ast.TryStar():
                    yield from self._try(node)
                case ast.While():
                    yield from self._while(node)
                case ast.With() | ast.AsyncWith():
                    yield from self._with(node)
                case ast.Call():
                    yield from self._call(node)
                case ast.Global():
                    yield _warn(node, "global", "invoke runs several times: a changed global is changed each time")
                case ast.For() | ast.comprehension():
                    yield from self._iteration(node.iter)
                case ast.FunctionDef():
                    yield from self._decorators(node)

    def _try(self, node: ast.Try | ast.TryStar) -> Iterator[Finding]:
        for handler in node.handlers:
            if self._catches_all(handler) and not any(isinstance(n, ast.Raise) for n in _within(handler.body)):
                caught = "except BaseException" if handler.type else "except:"
                yield _error(
                    handler,
                    "bare-except",
                    f"`{caught}` catches the unwinding at a graph break, too: use `except Exception`, or raise again",
                )
        for left in _leaving(node.finalbody, loops=False):
            word = type(left).__name__.lower()
            yield _error(
                left,
                "leaving-finally",
                f"`{word}` in a `finally` swallows the unwinding at a graph break: put it after the try",
            )

    def _catches_all(self, handler: ast.ExceptHandler) -> bool:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        return any(kind is None or self._names.full(kind) == "BaseException" for kind in kinds)

    def _while(self, node: ast.While) -> Iterator[Finding]:
        if not (isinstance(node.test, ast.Constant) and node.test.value) or _calls_task(node):
            return
        for inner in _within(node.body):
            for handler in inner.handlers if isinstance(inner, (ast.Try, ast.TryStar)) else ():
                if not any(isinstance(n, _LEAVES) for n in _within(handler.body)):
                    yield _error(
                        handler,
                        "endless-retry",
                        "this loop tries again for ever and calls no task: a result that is not known yet may raise "
                        "each time. Bound it (`for attempt in range(3)`), or wait(x) before it",
                    )

    def _with(self, node: ast.With | ast.AsyncWith) -> Iterator[Finding]:
        for item in node.items:
            call = item.context_expr
            if (
                isinstance(call, ast.Call)
                and self._names.full(call.func) == "contextlib.suppress"
                and any(self._names.full(a) == "BaseException" for a in call.args)
            ):
                yield _error(
                    node,
                    "bare-except",
                    "suppress(BaseException) swallows the unwinding at a graph break: suppress Exception",
                )

    def _call(self, node: ast.Call) -> Iterator[Finding]:
        name = self._names.full(node.func)
        if chance(name, bool(node.args or node.keywords)):
            yield _error(
                node,
                "chance",
                f"{name}() differs from pass to pass: use now(), rng() or new_id() of cornstalk",
            )
        elif why := effect(name):
            yield _warn(node, *why)
        elif name in ("list", "tuple", "enumerate") or (
            isinstance(node.func, ast.Attribute) and node.func.attr == "join"
        ):
            yield from self._iteration(node.args[0] if node.args else None)
        elif name in ("type", "id") and len(node.args) == 1:
            yield _warn(
                node, "hidden-look", f"{name}(x) sees a result that is not known yet as such: isinstance(), or wait(x)"
            )

    def _iteration(self, over: ast.expr | None) -> Iterator[Finding]:
        made = self._names.full(over.func) if isinstance(over, ast.Call) else ""
        if isinstance(over, (ast.Set, ast.SetComp)) or (isinstance(over, ast.Call) and made in ("set", "frozenset")):
            yield _warn(
                over, "set-order", "the order of a set differs between processes: sorted() before calls depend on it"
            )

    def _decorators(self, node: ast.FunctionDef) -> Iterator[Finding]:
        for decorator in node.decorator_list:
            kind = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._names.full(kind) in ("functools.lru_cache", "functools.cache", "functools.cached_property"):
                yield _warn(
                    decorator,
                    "cache",
                    "a cached function must neither call tasks nor keep results: calls would be left out",
                )


def _calls_task(loop: ast.While) -> bool:
    """Whether the loop calls something of `self`: then the limit of calls ends it."""
    return any(
        isinstance(n, ast.Call) and isinstance(f := n.func, ast.Attribute) and ast.unparse(f).startswith("self.")
        for n in _within(loop.body)
    )


def _within(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Every node, but not those of functions and classes in it."""
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            todo += ast.iter_child_nodes(node)


def _leaving(body: list[ast.stmt], loops: bool) -> Iterator[ast.stmt]:
    """Statements that leave the body; `break` and `continue` of a loop within do not."""
    for node in body:
        if isinstance(node, ast.Return) or (isinstance(node, (ast.Break, ast.Continue)) and not loops):
            yield node
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = loops or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
            for name in ("body", "orelse", "finalbody"):
                yield from _leaving(getattr(node, name, []), inner if name == "body" else loops)
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from _leaving(part.body, loops)


def _error(node: ast.stmt | ast.expr | ast.excepthandler, code: str, message: str) -> Finding:
    return Finding(node.lineno, code, message, "error")


def _warn(node: ast.stmt | ast.expr, code: str, message: str) -> Finding:
    return Finding(node.lineno, code, message, "warning")
