"""Random programs for apps/interpreter.py. Every variable has one type, so that each program is valid."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Expression = Any
Statement = list[Any]


class Program:
    """One program of a request, or of a nested composite."""

    def __init__(self, draw: Callable[[Any], Any], depth: int, statements: int) -> None:
        self.draw, self.depth = draw, depth  # levels of composites below
        self.known: dict[str, list[str]] = {"s": ["s"], "t": [], "w": [], "l": []}
        self.fresh = itertools.count()
        self.left = statements

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def new(self, kind: str) -> str:
        name = f"{kind}{next(self.fresh)}"
        self.known[kind].append(name)
        return name

    # ------------------------------------------------------------ expressions

    def text(self, depth: int = 1) -> Expression:
        names = [["var", n] for n in (*self.known["s"], *self.known["w"])]
        if depth == 0 or self.pick([True, False]):
            return self.pick([*names, *names, "a", "7x"])
        a, b = self.text(depth - 1), self.text(depth - 1)
        kinds: list[Expression] = [["cut", a, 6], ["upper", a], ["format", a, b], ["join", a, b]]
        kinds += [["choose", self.test(), a, b]] + [["item", n, 1] for n in self.known["l"]]
        return self.pick(kinds)

    def test(self) -> Expression:
        a = self.text(0)
        honest: list[Expression] = [["low", a], ["has", "a", a], ["less", a, self.text(0)]]
        return self.pick([*honest, ["not", honest[0]]])

    def times(self) -> Expression:
        return self.pick([2, 3, ["of", self.text(0), 4], ["of", self.text(0), 3]])

    def tensors(self) -> list[str]:
        return [self.pick(self.known["t"])] if self.known["t"] and self.pick([True, False]) else []

    def ms(self) -> int:
        ms: int = self.pick([0, 0, 0, 2, 5])
        return ms

    # ------------------------------------------------------------ statements

    def block(self, most: int = 2) -> list[Statement]:
        """What is bound in it is not known after it."""
        before = {kind: list(names) for kind, names in self.known.items()}
        made = [self.statement() for _ in range(self.draw(st.integers(1, most)))]
        self.known = before
        return made

    def statement(self) -> Statement:
        self.left -= 1
        kinds = ["call", "call", "call", "tensor", "stream", "echo", "fan", "fan_in", "set", "attempt"]
        if self.left > 0:
            kinds += ["if", "if", "for", "while", "try"] + ["nest"] * (2 if self.depth else 0)
        made: Statement = getattr(self, f"{self.pick(kinds)}_statement")()
        return made

    def call_statement(self) -> Statement:
        parts = [self.text(), [self.text(0) for _ in range(self.pick([0, 0, 1, 2]))], self.tensors(), self.ms()]
        return ["call", self.new("s"), *parts]

    def tensor_statement(self) -> Statement:
        parts = [self.text(0), self.tensors(), self.ms()]
        return ["tensor", self.new("t"), *parts]

    def stream_statement(self) -> Statement:
        parts = [self.text(0), self.tensors(), self.pick([1, 3, 5]), self.ms()]
        return ["stream", self.new("w"), *parts]

    def echo_statement(self) -> Statement:
        source = self.pick(self.known["w"] or self.known["s"])
        return ["echo", self.new("w"), source, self.ms()]

    def fan_statement(self) -> Statement:
        parts = [self.text(0), self.times()]
        return ["fan", self.new("l"), *parts]

    def fan_in_statement(self) -> Statement:
        fan = [] if self.known["l"] else [self.fan_statement()]
        source = self.pick(self.known["l"])
        return ["block", [*fan, ["fan_in", self.new("s"), source, self.tensors()]]]

    def set_statement(self) -> Statement:
        text = self.text(2)
        return ["set", self.new("s"), text]

    def nest_statement(self) -> Statement:
        text = self.text(0)
        inner = Program(self.draw, self.depth - 1, 4)
        program = [inner.statement() for _ in range(self.draw(st.integers(1, 3)))]
        return ["nest", self.new("s"), text, program]

    def if_statement(self) -> Statement:
        test = self.test()
        return ["if", test, self.left_early(self.block()), self.block()]

    def left_early(self, body: list[Statement], once_in: int = 6) -> list[Statement]:
        """Now and then the whole program ends with this block."""
        return [*body, ["leave"]] if self.pick([*range(once_in)]) == 1 else body

    def for_statement(self) -> Statement:
        times = self.times()
        return ["for", times, self.block()]

    def while_statement(self) -> Statement:
        name = self.new("s")  # unbound until the first call
        first = ["call", name, self.text_without(name), [], [], 0]
        test = self.pick([["low", ["var", name]], ["not", ["low", ["var", name]]], ["has", "ab", ["var", name]]])
        body = [*self.block(1), ["call", name, ["format", ["var", name], "again"], [], [], self.ms()]]
        return ["block", [first, ["while", test, self.pick([2, 4]), body]]]

    def text_without(self, name: str) -> Expression:
        self.known["s"].remove(name)
        text = self.text()
        self.known["s"].append(name)
        return text

    def attempt_statement(self) -> Statement:
        """A call that fails always, by its result, or never; nearly always caught."""
        text, name = self.text(0), self.new("s")
        self.known["s"].remove(name)
        how = self.pick(["raise", "raise", "bug", "wrong_type"])
        risky = ["risky", name, text, how, self.pick([True, False, self.test()])]
        if self.pick([True] * 11 + [False]):
            risky = ["try", [risky], self.left_early([["set", name, "failed"]], 2)]
        self.known["s"].append(name)
        return risky

    def try_statement(self) -> Statement:
        attempt = self.attempt_statement()
        inside = attempt[1] if attempt[0] == "try" else [attempt]
        name = inside[0][1]
        self.known["s"].remove(name)
        body, handler = [*inside, *self.block()], [["set", name, "failed"], *self.block()]
        self.known["s"].append(name)
        return ["try", self.left_early(body), self.left_early(handler, 2)]

    def source(self) -> list[Statement]:
        made = [self.statement() for _ in range(self.draw(st.integers(3, 7)))]
        if self.pick([False] * 7 + [True]):
            made.append(["raise", self.test()])
        return made


@st.composite
def programs(draw: Callable[[Any], Any]) -> list[Statement]:
    return Program(draw, depth=2, statements=14).source()
