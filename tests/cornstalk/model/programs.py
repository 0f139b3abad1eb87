"""Random programs as source text: branches, loops, try/except, nested composites, and every sort of looking."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

LEAKS = (
    "try: {name} = ''.join([{a}, 'j'])\nexcept TypeError: {name} = 'leak'",
    "try: {name} = {a} + 'x'\nexcept BaseException: {name} = 'leak'",
    "{name} = 'str' if type({a}) is str else 'leak'",
    "{name} = json.dumps([{a}], default=lambda o: 'leak')[:12]",
)


class Program:
    """Source text of one invoke; every variable has one type, so that the text is valid Python whatever it computes."""

    def __init__(self, draw: Callable[[Any], Any], leaky: bool) -> None:
        self.draw, self.leaky = draw, leaky
        self.lines: list[str] = []
        self.known: dict[str, list[str]] = {"s": ["q"], "n": [], "l": []}  # variables by type
        self.budget, self.fresh, self.indent = 22, itertools.count(), 1

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def new(self, kind: str) -> str:
        return f"{kind}{next(self.fresh)}"

    def text(self, depth: int = 2) -> str:
        atoms = [*self.known["s"], "'a'", "'bad'", "'x y'", "'abc'"]
        if depth == 0 or self.pick([0, 1]):
            return self.pick(atoms)
        a, b = self.text(depth - 1), self.text(depth - 1)
        kinds = [
            f"f'{{{self.variable(a)}}}-{{{self.variable(b)}}}'[:16]",
            f"({a} + {b})[:16]",
            f"({a}).upper()",
            f"'-'.join([{a}, {b}])[:16]",
            f"json.dumps({a})[:16]",
            f"re.sub('a', 'o', {a})",
            f"({a})[:3]",
            f"({a} if {self.truth()} else {b})",
            f"''.join(sorted({a}))",
            f"str({self.number(depth - 1)})",
            f"'%s' % ({a},)",
            f"'{{}}'.format({a})",
            f"max({a}, {b})",
            f"({a} or {b})",
            f"{{0: {a}, 1: {b}}}[{self.number(0)} % 2]",
        ]
        return self.pick(kinds)

    def variable(self, text: str) -> str:
        if text.isidentifier():
            return text
        name = self.new("t")
        self.emit(f"{name} = {text}")
        return name

    def number(self, depth: int = 1) -> str:
        options = [*self.known["n"], "1", "3"]
        if depth:
            longer = self.pick([*self.known["n"], "2"])
            options += [f"len({self.text(0)})", f"({longer} + 1)", f"len({self.pick(self.known['l'] or ['[1]'])})"]
        return self.pick(options)

    def truth(self) -> str:
        a = self.text(0)
        honest = [f"len({a}) % 2", f"'a' in {a}", f"{a} == {self.text(0)}", f"{self.number(0)} > 2", f"{a} < 'm'"]
        honest += [f"not {a}", f"isinstance({a}, str)", f"{a} in ['a', 'A']"]
        return self.pick(honest + ([f"type({a}) is str", f"{self.variable(a)} is None"] if self.leaky else []))

    def call(self) -> tuple[str, str]:
        port = self.pick(["s", "s", "n", "l"])
        calls = [
            (f"self.echo(x={self.text(1)}).{port}", port),
            (f"self.brain(prompt={self.text(1)}).text", "s"),
            (f"self.step({self.text(1)})", "s"),
            (f"self.echo(x=[{self.text(0)}, {self.number(0)}]).{port}", port),
        ]
        return self.pick(calls)

    def bind(self, kind: str, value: str) -> str:
        name = self.new(kind)
        self.emit(f"{name} = {value}")
        self.known[kind].append(name)
        return name

    def block(self, depth: int) -> None:
        self.indent += 1
        mark = {kind: list(names) for kind, names in self.known.items()}
        for _ in range(self.draw(st.integers(1, 3))):
            self.statement(depth)
        self.known = mark
        self.indent -= 1

    def statement(self, depth: int = 2) -> None:
        self.budget -= 1
        kinds = ["call"] * 4 + ["string", "append", "comprehension", "risky", "reassign"]
        if self.indent > 1:
            kinds.append("leave")
        if depth and self.budget > 0:
            kinds += ["branch", "branch", "loop", "attempt"]
        if self.leaky:
            kinds += ["leak"] * 2
        getattr(self, f"{self.pick(kinds)}_statement")(depth)

    def call_statement(self, depth: int) -> None:
        call, kind = self.call()
        self.bind(kind, call)

    def string_statement(self, depth: int) -> None:
        self.bind("s", self.text())

    def reassign_statement(self, depth: int) -> None:
        text = self.text()
        own = self.known["s"][1:]
        self.emit(f"{self.pick(own)} = {text}" if own else "pass")

    def append_statement(self, depth: int) -> None:
        self.emit(f"{self.pick(self.known['l'])}.append({self.text(0)})" if self.known["l"] else "pass")

    def comprehension_statement(self, depth: int) -> None:
        source = self.pick([f"{v}[:3]" for v in self.known["l"]] + [f"list({v}[:3])" for v in self.known["s"]])
        call = self.pick(["self.echo(x={}).s", "self.step({})", "self.step({})"]).format(f"c + {self.text(0)}")
        self.bind("l", f"[{call} for c in {source}]")

    def risky_statement(self, depth: int) -> None:
        self.guarded(lambda: None)

    def attempt_statement(self, depth: int) -> None:
        self.guarded(lambda: self.block(depth - 1))

    def guarded(self, body: Callable[[], None]) -> None:
        text, name = self.text(1), self.new("s")
        self.emit("try:")
        self.emit(f"    {name} = self.risky(x={text}).s")
        body()
        self.emit("except TaskError as error:")
        self.emit(f"    {name} = error.error.message[:20]")
        body()
        self.known["s"].append(name)

    def branch_statement(self, depth: int) -> None:
        self.emit(f"if {self.truth()}:")
        self.block(depth - 1)
        self.emit("else:")
        self.block(depth - 1)

    def loop_statement(self, depth: int) -> None:
        self.emit(f"for {self.new('i')} in range({self.number()} % 3):")
        self.block(depth - 1)

    def leak_statement(self, depth: int) -> None:
        name, a = self.new("s"), self.text(0)
        for line in self.pick(LEAKS).format(name=name, a=a).split("\n"):
            self.emit(line)
        self.known["s"].append(name)

    def leave_statement(self, depth: int) -> None:
        self.emit(f"if {self.truth()}: return ['left', {self.text(0)}]" if self.pick([0, 1]) else "return ['left']")

    def source(self) -> str:
        for _ in range(self.draw(st.integers(2, 7))):
            self.statement()
        if self.pick([0, 0, 0, 1]):
            self.emit(f"z = self.risky(x={self.text(0)}).s")
            self.known["s"].append("z")
        self.emit(f"return [{', '.join(n for names in self.known.values() for n in names)}]")
        return "def invoke(self, q):\n" + "\n".join(self.lines)


@st.composite
def programs(draw: Callable[[Any], Any], leaky: bool) -> str:
    return Program(draw, leaky).source()
