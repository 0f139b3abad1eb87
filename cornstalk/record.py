"""Record and replay: one pass of `invoke` over the log so far (notes/record.md has the rules).

A *pass* runs `invoke` once. A call whose result is not known yet hands out pending values; touching one suspends the
pass. The driver stores and sends what was recorded, waits, and starts the next pass with what is known by then.
Only a *complete* pass answers: one that was handed no pending value at all.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, NoReturn, get_type_hints

import msgspec

from cornstalk.arguments import Arguments, resolved, shown
from cornstalk.blame import culprits, user_line
from cornstalk.errors import NondeterministicInvoke, RecordError, TaskError, TooManyCalls
from cornstalk.handle import Called, Out
from cornstalk.messages import Error, Node, encode
from cornstalk.pending import Source, Suspend, current, make_pending
from cornstalk.task import CompositeTask, UnitTask, short_hash
from cornstalk.types import make_port

MAX_NODES: Final = 4096
"""Nodes of a request, cut ones included."""


class Result(msgspec.Struct, frozen=True):
    """What is known of a node that ended. `seq` is the RUNS sequence of its End: results are given gap-free.

    `outputs`: each value in msgpack form, each stream as the whole its pieces add up to; tensors are not looked at.
    """

    seq: int
    outputs: dict[str, Any] | None = None
    error: Error | None = None


@dataclass(frozen=True)
class Outcome:
    """How a pass ended.

    done: `value` is final if `Pass.complete`; else pending values stand in it.
    wait: nothing but calls came of it.
    raise: the request failed with `error`; nothing of this pass may be stored or sent.
    If neither final nor failed, a next pass is worth it when all nodes of one of the `groups` are known, or any failed.
    """

    kind: Literal["done", "wait", "raise"]
    value: Any = None
    error: Exception | None = None
    groups: tuple[tuple[str, ...], ...] = ()


class _Scope:
    """One call of a composite task in a pass: its own part of the log, its own ordinals, its own breaks."""

    __slots__ = ("at", "breaks", "calls", "counts", "log", "path", "task")

    def __init__(self, task: CompositeTask, path: str, log: list[Node]) -> None:
        self.task, self.path, self.log = task, path, log
        self.at = 0  # the next logged call
        self.calls = 0
        self.counts: dict[str, int] = {}
        self.breaks: list[str] = []  # tokens it waits for; not empty: this call is dead

    def ordinal(self, name: str) -> int:
        count = self.counts[name] = self.counts.get(name, -1) + 1
        return count


class Pass:
    """One run of `invoke`. Pure: it stores and sends nothing, and survives being run again anywhere.

    `log` holds the nodes of all stored Graphs in order without the cut ones; `cuts` says how many those are;
    `results` what is known (a gap-free prefix of the request's facts). Afterwards `new_nodes` and `cuts` are what the
    next Graph adds; both are empty when the outcome is "raise".
    """

    def __init__(
        self,
        log: Sequence[Node],
        results: Mapping[str, Result],
        *,
        request_id: str = "",
        seed: int = 0,
        accepted_at: float = 0.0,
        cuts: int = 0,
        strict: bool = False,
    ) -> None:
        self.log, self.results, self.strict = log, results, strict
        self.request_id, self.seed, self.accepted_at = request_id, seed, accepted_at
        self.provisional: list[str] = []  # tokens of calls whose result this pass had to do without
        self.waits: dict[str, list[str]] = {}  # path of a suspended composite call -> tokens it waits for
        self.fatal: Exception | None = None
        self.arguments = Arguments(self)
        self.visited: list[Node] = []
        self._seen = max((r.seq for r in results.values()), default=0)
        self._new: list[Node] = []
        self._cut: list[str] = []
        self._cut_before = cuts
        self._parts: dict[str, list[Node]] = {}
        for node in log:
            self._parts.setdefault(_path(node.id), []).append(node)
        self._names: dict[int, dict[int, str]] = {}
        self._thread = 0
        self.complete = False  # whether a "done" outcome is the answer
        self._scope: _Scope
        self._root: _Scope

    # ------------------------------------------------------------------ what the driver reads

    @property
    def new_nodes(self) -> tuple[Node, ...]:
        return () if self.fatal else tuple(self._new)

    @property
    def cuts(self) -> tuple[str, ...]:
        """Tokens of logged guesses that a newer result proved wrong: their work is cancelled."""
        return () if self.fatal else tuple(self._cut)

    @property
    def nodes(self) -> list[Node]:
        """The whole log after this pass."""
        gone = set(self._cut)
        return [n for n in self.log if n.token not in gone] + self._new

    # ------------------------------------------------------------------ running

    def run(self, task: CompositeTask, request: Any) -> Outcome:
        """Runs `invoke` on a fresh copy of the request. Raises nothing but BaseExceptions that are not ours."""
        self._thread = threading.get_ident()
        self._scope = self._root = _Scope(task, "", self._parts.setdefault("", []))
        token = current.set(self)
        try:
            outcome = Outcome("done", task.invoke(copy.deepcopy(request)))
        except Suspend:
            outcome = Outcome("wait")
        except Exception as error:
            outcome = Outcome("raise", error=error)
        finally:
            current.reset(token)
        if self.fatal is None:
            outcome = self._settled(outcome)
        if self.fatal is not None:
            return Outcome("raise", error=self.fatal)
        self.complete = outcome.kind == "done" and not self.provisional
        return outcome

    def _settled(self, outcome: Outcome) -> Outcome:
        breaks = self._root.breaks
        if outcome.error is not None and self.provisional and not isinstance(outcome.error, TaskError):
            breaks += self._blamed(outcome.error)
        if outcome.error is not None and not breaks:
            return outcome
        self._cut_leftovers()
        groups = (breaks or self.provisional, *self.waits.values())
        unique = tuple(tuple(dict.fromkeys(g)) for g in groups if g)
        return Outcome("wait", groups=unique) if breaks else Outcome("done", outcome.value, groups=unique)

    def _cut_leftovers(self) -> None:
        seen = {n.token for n in self.visited}
        rest: dict[str, list[Node]] = {}
        for node in self.log:
            if node.token not in seen and node.token not in self._cut:
                rest.setdefault(_path(node.id), []).append(node)
        try:
            for nodes in rest.values():
                self._give_up(nodes, "no such call")
        except NondeterministicInvoke:
            pass  # it stands in self.fatal

    def suspend(self, source: Source) -> NoReturn:
        """A graph break: the composite call that is running waits for this value."""
        self._check_thread()
        self._scope.breaks += self._tokens(source)
        raise Suspend

    def await_node(self, token: str) -> None:
        """Suspends until a node has ended."""
        if token not in self.results:
            self.suspend(Source(token, "", None, token))

    def fail(self, error: Exception) -> NoReturn:
        """Ends the request with this error, whatever user code catches."""
        self.fatal = self.fatal or error
        raise error

    def _tokens(self, source: Source) -> list[str]:
        return self.waits.get(source.node) or [source.node]

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            self.fail(RecordError("tasks are called from the thread that runs invoke: calls in threads have no order"))

    def _alive(self) -> _Scope:
        if self.fatal is not None:
            raise self.fatal
        self._check_thread()
        scope = self._scope
        if scope.breaks:
            raise Suspend  # the first one was swallowed: the scope stays dead
        return scope

    def _enter(self) -> _Scope:
        """The scope of the next call, if there may be one."""
        scope = self._alive()
        scope.calls += 1
        if scope.calls > scope.task.max_calls:
            where = scope.path.rstrip("/") or "invoke"
            self.fail(TooManyCalls(f"{where} makes more than {scope.task.max_calls} calls (at {user_line()})"))
        return scope

    def _name(self, scope: _Scope, task: UnitTask | CompositeTask) -> str:
        for holder in (scope.task, self._root.task):
            names = self._names.get(id(holder))
            if names is None:
                names = self._names[id(holder)] = {}
                for name, member in holder.named_tasks().items():
                    names.setdefault(id(member), name)
            if id(task) in names:
                return names[id(task)]
        owner = type(scope.task).__name__
        self.fail(
            RecordError(
                f"{type(task).__name__} at {user_line()} is no attribute of {owner}, nor in a list or dict of one: "
                "tasks are found before a request runs, so that their workers exist"
            )
        )

    # ------------------------------------------------------------------ calls

    def call(self, task: UnitTask, inputs: dict[str, Any]) -> Out:
        """Records the call of a unit task, or finds it again in the log. Raises TaskError if it has failed."""
        scope = self._enter()
        name = self._name(scope, task)
        sent = self.arguments.snapshot(task, inputs)
        data = _encoded(name, sent)
        key = f"{scope.path}{name}#{scope.ordinal(name)}"
        node = scope.log[scope.at] if scope.at < len(scope.log) else None
        if node is not None and not self._same(node, key, task, sent, data):
            self._give_up(scope.log[scope.at :], f"{key}({self._shown(sent)}) at {user_line()}")
            node = None
        if node is None:
            self.arguments.check(task, inputs, sent)
            node = self._record(key, task, sent)
            scope.log.append(node)
        scope.at += 1
        self.visited.append(node)
        result = self.results.get(node.token)
        if result is None:
            self.provisional.append(node.token)
        elif result.error is not None:
            raise TaskError(result.error, node.id)
        return Out(Called(self, node, task, result, {}))

    def _record(self, key: str, task: UnitTask, sent: dict[str, Any]) -> Node:
        if self._cut_before + len(self.log) + len(self._new) >= MAX_NODES:
            self.fail(TooManyCalls(f"a request has at most {MAX_NODES} nodes (at {user_line()})"))
        branch = self._cut_before + len(self._cut)  # unique: each cut makes it larger
        id = f"{key}~{branch}" if branch else key
        node = Node(
            id=id,
            token=short_hash(id.encode(), 8),
            component=task.component,
            line=user_line(),
            seed=_number(f"{self.seed}:{id}"),
            seen=self._seen,
            inputs=sent,
            outputs={n: p.kind for n, p in task.outputs.items()},
        )
        self._new.append(node)
        return node

    def draw(self, purpose: str) -> bytes:
        """16 bytes that only request id, composite call and the number of draws before it decide."""
        scope = self._alive()
        text = f"{self.request_id}\0{scope.path}\0{purpose}\0{scope.ordinal(chr(0) + purpose)}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def nested(self, task: CompositeTask, request: Any) -> Any:
        """A composite that suspends does not suspend its caller, who gets a pending result and goes on."""
        outer = self._enter()
        name = self._name(outer, task)
        path = f"{outer.path}{name}#{outer.ordinal(name)}/"
        inner = self._scope = _Scope(task, path, self._parts.setdefault(path, []))
        value = None
        try:
            value = task.invoke(request)
        except Suspend:
            pass
        except Exception as error:
            if self.fatal is not None:
                raise self.fatal from None
            if not inner.breaks:
                if isinstance(error, TaskError) or not self.provisional:
                    raise
                inner.breaks += self._blamed(error)
        finally:
            self._scope = outer
        if not inner.breaks:
            return value
        self.waits[path] = inner.breaks
        source = Source(path, "", None, path)
        pending = pending_result(type(task).invoke)
        if pending is None:
            self.suspend(source)
        return make_pending(pending, source, self)

    def _blamed(self, error: Exception) -> list[str]:
        return [t for source in culprits(error) for t in self._tokens(source)] or list(self.provisional)

    # ------------------------------------------------------------------ the log against what happens now

    def _same(self, node: Node, key: str, task: UnitTask, sent: dict[str, Any], data: bytes) -> bool:
        if not (node.id == key or node.id.startswith(f"{key}~")) or node.component != task.component:
            return False
        return encode(node.inputs) == data or resolved(node.inputs, self.results) == resolved(sent, self.results)

    def _give_up(self, rest: list[Node], now: str) -> None:
        """Cuts logged calls that did not happen again, if a result newer than the first may have changed the way.

        A call that was recorded before an earlier result was known is a guess. Else the way changed with nothing new:
        NondeterministicInvoke, and nothing of this pass counts.
        """
        old = rest[0]
        known = (self.results.get(n.token) for n in self.visited)
        newer = [r for r in known if r is not None and r.seq > old.seen]
        if newer and (not self.strict or any(r.error is not None for r in newer)):
            gone = {n.token for n in rest}
            self._cut += gone
            part = self._parts[_path(old.id)]
            part[:] = [n for n in part if n.token not in gone]
            return
        self.fail(
            NondeterministicInvoke(
                f"invoke took another way than before. Earlier: {old.id}({self._shown(old.inputs)}) at {old.line}. "
                f"Now: {now}. Either it depends on something that changes (time, random, a global, a cache), or it "
                "looked at a result in a way that cannot be seen (`type(x)`, `x is y`, `except TypeError` around "
                "C code): use wait(x) first."
            )
        )

    def _shown(self, inputs: dict[str, Any]) -> str:
        return shown(inputs, {n.token: n.id for n in (*self.log, *self._new)})


def _path(id: str) -> str:
    return id[: id.rfind("/") + 1]


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1  # 63 bits: fits everywhere


def _encoded(name: str, sent: dict[str, Any]) -> bytes:
    try:
        return encode(sent)
    except (ValueError, OverflowError) as error:  # a lone surrogate
        raise TypeError(f"{name}: an input cannot travel: {error}") from error


@cache
def pending_result(invoke: Callable[..., Any]) -> type | None:
    """The pending class of what an `invoke` is annotated to return; None: who calls it waits for it."""
    hint = get_type_hints(invoke, include_extras=True).get("return")
    return None if hint is None else make_port("result", hint).pending
