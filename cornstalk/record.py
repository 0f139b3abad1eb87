"""Record and replay: one pass of `invoke` over the log so far (notes/record.md has the rules).

A *pass* runs `invoke` once. A call whose result is not known yet hands out pending values; touching one suspends the
pass. The driver stores and sends what was recorded, waits, and starts the next pass with what is known by then.
Only a *complete* pass answers: one that was handed no pending value at all.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

from cornstalk.arguments import Arguments, Sent, agree, shown
from cornstalk.blame import culprits, user_line
from cornstalk.errors import NondeterministicInvoke, RecordError, TaskError, TooManyCalls
from cornstalk.handle import Called, Out, value_from
from cornstalk.large import Spooled
from cornstalk.live import LiveRequest
from cornstalk.log import MAX_NODES, Log, Scope, is_call
from cornstalk.messages import Error, Node, encode
from cornstalk.pending import Source, Suspend, current, make_pending
from cornstalk.task import CompositeTask, UnitTask, pending_result


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
        path: str = "",
        strict: bool = False,
    ) -> None:
        """`path`: what all node ids begin with; "" or the path of one composite call, ending in "/"."""
        self.log, self.results, self.strict = Log(log, cuts), results, strict
        self.request_id, self.seed, self.accepted_at = request_id, seed, accepted_at
        self._path = path
        self.provisional: list[str] = []  # tokens of calls whose result this pass had to do without
        self.waits: dict[str, list[str]] = {}  # path of a suspended composite call -> tokens it waits for
        self.given: set[str] = set()  # tokens of the nodes that a field of the request comes from
        self.unseen: list[str] = []  # calls that a look which cannot be seen has made in vain
        self.large: Spooled = {}  # what to spool before the nodes it is an input of are stored
        self.fatal: Exception | None = None
        self.arguments = Arguments(self)
        self.visited: list[Node] = []
        self._seen = max((r.seq for r in results.values()), default=0)
        self._names: dict[int, dict[int, str]] = {}
        self._thread = 0
        self.complete = False  # whether a "done" outcome is the answer
        self._scope: Scope
        self._root: Scope

    # ------------------------------------------------------------------ what the driver reads

    @property
    def new_nodes(self) -> tuple[Node, ...]:
        return () if self.fatal else tuple(self.log.new)

    @property
    def cuts(self) -> tuple[str, ...]:
        """Tokens of logged guesses that a newer result proved wrong: their work is cancelled."""
        return () if self.fatal else tuple(self.log.cut)

    @property
    def nodes(self) -> list[Node]:
        """The whole log after this pass."""
        return self.log.nodes

    # ------------------------------------------------------------------ running

    def run(self, task: CompositeTask, request: Any) -> Outcome:
        """Runs `invoke` on a fresh copy of the request, which may be a LiveRequest. Raises nothing but BaseExceptions
        that are not ours.
        """
        self._thread = threading.get_ident()
        self._scope = self._root = Scope(task, self._path, self.log.part(self._path))
        token = current.set(self)
        try:
            fresh = request.filled(self._arriving) if isinstance(request, LiveRequest) else copy.deepcopy(request)
            outcome = Outcome("done", task.invoke(fresh))
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
        if outcome.error is not None and not breaks:
            breaks += self._before(outcome.error)
            if not breaks:
                return outcome
        self._cut_leftovers()
        groups = (breaks or self.provisional, *self.waits.values())
        unique = tuple(tuple(dict.fromkeys(g)) for g in groups if g)
        return Outcome("wait", groups=unique) if breaks else Outcome("done", outcome.value, groups=unique)

    def _cut_leftovers(self) -> None:
        try:
            for nodes in self.log.leftovers({n.token for n in self.visited}):
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
        """Ends the request with this error, whatever user code catches: raised once, so `except` cannot loop on it."""
        if self.fatal is not None:
            raise Suspend
        self.fatal = error
        raise error

    def _tokens(self, source: Source) -> list[str]:
        return self.waits.get(source.node) or [source.node]

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            self.fail(RecordError("tasks are called from the thread that runs invoke: calls in threads have no order"))

    def _alive(self) -> Scope:
        if self.fatal is not None:
            raise Suspend
        self._check_thread()
        scope = self._scope
        if scope.breaks:
            raise Suspend  # the first one was swallowed: the scope stays dead
        return scope

    def _enter(self) -> Scope:
        """The scope of the next call, if there may be one."""
        scope = self._alive()
        scope.calls += 1
        if scope.calls > scope.task.max_calls:
            where = scope.path.rstrip("/") or "invoke"
            self.fail(TooManyCalls(f"{where} makes more than {scope.task.max_calls} calls (at {user_line()})"))
        return scope

    def _name(self, scope: Scope, task: UnitTask | CompositeTask) -> str:
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
        sent = self.arguments.send(name, task, inputs)
        key = f"{scope.path}{name}#{scope.ordinal(name)}"
        node = scope.part[scope.at] if scope.at < len(scope.part) else None
        if node is not None and not self._same(node, key, task, sent):
            self._give_up(scope.part[scope.at :], f"{key}({self._shown(sent.plain)}) at {user_line()}")
            node = None
        if node is None:
            node = self._record(key, task, inputs, sent)
        scope.at += 1
        self.visited.append(node)
        result = self.results.get(node.token)
        if result is None:
            self.provisional.append(node.token)
        elif result.error is not None:
            raise TaskError(result.error, key)  # without a branch: what user code sees knows nothing of guesses
        return Out(Called(self, node, task, result, {}))

    def _record(self, key: str, task: UnitTask, inputs: dict[str, Any], sent: Sent) -> Node:
        self.arguments.check(task, inputs, sent.plain)
        if self.log.full:
            self.fail(TooManyCalls(f"a request has at most {MAX_NODES} nodes (at {user_line()})"))
        self.large.update(sent.large)
        return self.log.add(key, task, sent.stored, user_line(), self.seed, self._seen)

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
        inner = self._scope = Scope(task, path, self.log.part(path))
        value = None
        try:
            value = task.invoke(request)
        except Suspend:
            if self.fatal is not None:
                raise
        except Exception as error:
            if self.fatal is not None:
                raise
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

    def _before(self, error: Exception) -> list[str]:
        """The calls whose results come first: in ordinary Python none is under way when an error leaves `invoke`.

        What a client still streams in is no call that could fail or lead elsewhere.
        """
        if isinstance(error, TaskError):
            return [token for token in self.provisional if token not in self.given]
        return self._blamed(error) if self.provisional else []

    def _blamed(self, error: Exception) -> list[str]:
        return [t for source in culprits(error) for t in self._tokens(source)] or list(self.provisional)

    def _arriving(self, source: Source) -> Any:
        """A field of the request that comes from a node: as an output of a call that was made before all others."""
        self.given.add(source.node)
        self.visited.append(Node(id=source.call, token=source.node, component=""))
        result = self.results.get(source.node)
        if result is None:
            self.provisional.append(source.node)
        elif result.error is not None:
            raise TaskError(result.error, source.call)
        return value_from(source, result, self)

    # ------------------------------------------------------------------ the log against what happens now

    def _same(self, node: Node, key: str, task: UnitTask, sent: Sent) -> bool:
        if not is_call(node, key) or node.component != task.component:
            return False
        return encode(node.inputs) == sent.data or agree(node.inputs, sent.plain, self.results)

    def _give_up(self, rest: list[Node], now: str) -> None:
        """Cuts logged calls that did not happen again, if a result newer than the first may have changed the way.

        A call that was recorded before an earlier result was known is a guess. Else the way changed with nothing new:
        NondeterministicInvoke, and nothing of this pass counts.
        """
        old = rest[0]
        known = (self.results.get(n.token) for n in self.visited)
        newer = [r for r in known if r is not None and r.seq > old.seen]
        failed = any(r.error is not None for r in newer)
        if newer and (not self.strict or failed):
            if not failed:
                self.unseen.append(f"{old.id} at {old.line}")
            self.log.give_up(rest)
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
        return shown(inputs, {n.token: n.id for n in (*self.log.stored, *self.log.new)})
