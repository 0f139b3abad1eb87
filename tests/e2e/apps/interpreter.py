"""Runs programs that come as data: branches and loops on results, streams, fan-out and fan-in, nesting, failures.

A program is a list of statements, a statement a list of its kind and its parts; tests/e2e/statements.py makes them.
Variables by their first letter: s text, t tensor, w text that arrives as a stream, l list of texts.
"""

from collections import Counter
from typing import Any

from pydantic import BaseModel

from cornstalk import App, CompositeTask, Stream, TaskError
from cornstalk.tasks.null import Null, NullStream, NullTensor

TAKEN: Counter[str] = Counter()
"""What programs did in this process, for the report of a test. No program depends on it."""

Env = dict[str, Any]


class Ask(BaseModel):
    text: str
    program: list[Any]


class Reply(BaseModel):
    path: list[str]
    text: Stream[str] = ""


class Interpreter(CompositeTask):
    def __init__(self, depth: int) -> None:
        self.step, self.risky = Null(name="int-step"), Null(name="int-risky")
        self.maker = NullTensor(name="int-maker")
        self.talker, self.echo = NullStream(name="int-talker"), NullStream(name="int-echo")
        self.nested = [Nested(depth - 1)] if depth else []

    def run(self, program: list[Any], env: Env) -> bool:
        """Whether a statement left the program."""
        return any(getattr(self, f"do_{kind}")(env, *parts) for kind, *parts in program)

    # ------------------------------------------------------------ calls

    def do_call(self, env: Env, target: str, text: Any, texts: list[Any], tensors: list[str], ms: int) -> None:
        given = {"texts": [value(e, env) for e in texts], "tensors": [env[t] for t in tensors]}
        env[target] = self.step(text=value(text, env), service_ms=ms, **given).digest

    def do_tensor(self, env: Env, target: str, text: Any, tensors: list[str], ms: int) -> None:
        out = self.maker(text=value(text, env), tensors=[env[t] for t in tensors], nbytes=5000, service_ms=ms)
        env[target] = out.tensor

    def do_stream(self, env: Env, target: str, text: Any, tensors: list[str], pieces: int, ms: int) -> None:
        given = [env[t] for t in tensors]
        env[target] = self.talker(text=value(text, env), tensors=given, pieces=pieces, service_ms=ms).text

    def do_echo(self, env: Env, target: str, source: str, ms: int) -> None:
        env[target] = self.echo(source=env[source], service_ms=ms).text
        TAKEN["stream edge" if source[0] == "w" else "text as a stream"] += 1

    def do_fan(self, env: Env, target: str, text: Any, times: Any) -> None:
        env[target] = [self.step(text=str(i), texts=[value(text, env)]).digest for i in range(count(times, env))]
        TAKEN["fan-out"] += 1

    def do_fan_in(self, env: Env, target: str, texts: str, tensors: list[str]) -> None:
        env[target] = self.step(texts=env[texts], tensors=[env[t] for t in tensors]).digest
        TAKEN["fan-in"] += 1

    def do_nest(self, env: Env, target: str, text: Any, program: list[Any]) -> None:
        env[target] = self.nested[0]({"text": value(text, env), "program": program})
        TAKEN["nesting"] += 1

    def do_risky(self, env: Env, target: str, text: Any, how: str, when: Any) -> None:
        env[target] = self.risky(text=value(text, env), fail=how if truth(when, env) else "").digest

    # ------------------------------------------------------------ control flow

    def do_set(self, env: Env, target: str, text: Any) -> None:
        env[target] = value(text, env)

    def do_block(self, env: Env, body: list[Any]) -> bool:
        return self.run(body, env)

    def do_if(self, env: Env, test: Any, then: list[Any], other: list[Any]) -> bool:
        way = truth(test, env)
        TAKEN["branch" if way else "other branch"] += 1
        return self.run(then if way else other, env)

    def do_for(self, env: Env, times: Any, body: list[Any]) -> bool:
        for _ in range(count(times, env)):
            TAKEN["loop"] += 1
            if self.run(body, env):
                return True
        return False

    def do_while(self, env: Env, test: Any, limit: int, body: list[Any]) -> bool:
        while limit and truth(test, env):
            TAKEN["loop on a result"] += 1
            limit -= 1
            if self.run(body, env):
                return True
        return False

    def do_try(self, env: Env, body: list[Any], handler: list[Any]) -> bool:
        try:
            return self.run(body, env)
        except TaskError:
            TAKEN["caught failure"] += 1
        left = self.run(handler, env)
        TAKEN["left by a handler"] += left
        return left

    def do_raise(self, env: Env, test: Any) -> None:
        if truth(test, env):
            raise ValueError("as the program says")

    def do_leave(self, env: Env) -> bool:
        TAKEN["left early"] += 1
        return True


class Nested(Interpreter):
    """Gives one text back."""

    def invoke(self, q: dict[str, Any]) -> str:
        env: Env = {"s": q["text"]}
        self.run(q["program"], env)
        return "|".join(v for k, v in env.items() if k[0] == "s")[:64]


class Programs(Interpreter):
    def invoke(self, q: Ask) -> Reply:
        env: Env = {"s": q.text}
        self.run(q.program, env)
        path = [v for k, v in env.items() if k[0] == "s"]
        path += [v for k, values in env.items() if k[0] == "l" for v in values]
        streams = [v for k, v in env.items() if k[0] == "w"]
        return Reply(path=path, text=streams[-1]) if streams else Reply(path=path)


def value(e: Any, env: Env) -> str:
    """The text of an expression."""
    match e:
        case str():
            return e
        case ["var", name]:
            return env[name]
        case ["cut", a, n]:
            return value(a, env)[:n]
        case ["upper", a]:
            return value(a, env).upper()
        case ["format", a, b]:
            return f"{value(a, env)}-{value(b, env)}"[:48]
        case ["join", *parts]:
            return "+".join([value(p, env) for p in parts])[:48]
        case ["item", name, n]:
            return env[name][n % len(env[name])] if env[name] else ""
        case ["choose", test, a, b]:
            return value(a, env) if truth(test, env) else value(b, env)
    raise ValueError(f"no expression: {e}")


def truth(test: Any, env: Env) -> bool:
    match test:
        case bool():
            return test
        case ["low", a]:
            return value(a, env)[:1].lower() in "01234567"
        case ["has", letter, a]:
            return letter in value(a, env)
        case ["less", a, b]:
            return value(a, env) < value(b, env)
        case ["not", a]:
            return not truth(a, env)
    raise ValueError(f"no test: {test}")


def count(times: Any, env: Env) -> int:
    match times:
        case int():
            return times
        case ["of", a, n]:
            return sum(map(ord, value(a, env))) % n
    raise ValueError(f"no count: {times}")


app = App("interpreter", Programs(2))
