"""Random programs for apps/served_programs.py, each composite call with a random program of apps/interpreter.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.e2e.statements import Expression, Program, Statement

FAILS = ["risky", "s9", "a", "raise", True]
"""The last statement of a composite that fails."""


class ServeProgram:
    """One program of a serve. Every variable is bound whatever fails, so that each program is valid."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.known: dict[str, list[str]] = {"s": ["s"], "r": []}
        self.fresh = itertools.count()
        self.left = 10

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def new(self, kind: str) -> str:
        name = f"{kind}{next(self.fresh)}"
        self.known[kind].append(name)
        return name

    # ------------------------------------------------------------ expressions

    def text(self) -> Expression:
        a = ["var", self.pick(self.known["s"])]
        return self.pick([a, a, "a", "7x", ["cut", a, 6], ["format", a, "b"]])

    def test(self) -> Expression:
        a = self.text()
        return self.pick([["low", a], ["has", "a", a], ["not", ["low", a]]])

    def call(self, fails: bool) -> list[Any]:
        """Text and program of a composite call."""
        inner = Program(self.draw, depth=1, statements=3)
        program = [inner.statement() for _ in range(self.draw(st.integers(1, 2)))]
        if self.pick([True, True, False]):
            program.append(inner.stream_statement())
        return [self.text(), [*program, FAILS] if fails else program]

    # ------------------------------------------------------------ statements

    def block(self, most: int = 2) -> list[Statement]:
        """What is bound in it is not known after it."""
        before = {kind: list(names) for kind, names in self.known.items()}
        made = [s for _ in range(self.draw(st.integers(1, most))) for s in self.statement()]
        self.known = before
        return made

    def statement(self) -> list[Statement]:
        self.left -= 1
        kinds = ["call", "gather", "gather", "group", "read", "whole", "path", "relay", "set"]
        if self.left > 0:
            kinds += ["if", "for", "later", "later", "try", "try"]
        made: list[Statement] = getattr(self, f"{self.pick(kinds)}_statement")()
        return made

    def call_statement(self) -> list[Statement]:
        call = self.call(fails=False)
        return [["call", self.new("r"), *call]]

    def several(self, kind: str, fails: bool = False) -> tuple[list[str], Statement]:
        bad = self.pick([0, 1]) if fails else -1
        calls = [self.call(fails=i == bad) for i in range(self.pick([2, 2, 3]))]
        targets = [self.new("r") for _ in calls]
        return targets, [kind, targets, calls]

    def gather_statement(self) -> list[Statement]:
        return [self.several("gather")[1]]

    def group_statement(self) -> list[Statement]:
        return [self.several("group")[1]]

    def later_statement(self) -> list[Statement]:
        call, body = self.call(fails=self.pick([False, True])), self.block()
        return [["later", self.new("r"), *call, body]]

    def of_reply(self, kind: str) -> list[Statement]:
        first = [] if self.known["r"] else self.call_statement()
        source = self.pick(self.known["r"])
        return [*first, [kind, self.new("s"), source]]

    def read_statement(self) -> list[Statement]:
        return self.of_reply("read")

    def whole_statement(self) -> list[Statement]:
        return self.of_reply("whole")

    def path_statement(self) -> list[Statement]:
        return self.of_reply("path")

    def relay_statement(self) -> list[Statement]:
        first = [] if self.known["r"] else self.call_statement()
        source, text = self.pick(self.known["r"]), self.text()
        return [*first, ["relay", self.new("r"), source, text]]

    def set_statement(self) -> list[Statement]:
        text = self.text()
        return [["set", self.new("s"), text]]

    def if_statement(self) -> list[Statement]:
        then = self.block()
        return [["if", self.test(), self.left_early(then), self.block()]]

    def for_statement(self) -> list[Statement]:
        return [["for", self.pick([2, ["of", self.text(), 3]]), self.block(1)]]

    def try_statement(self) -> list[Statement]:
        """Of one call, or of one among several, which fails or not."""
        before = {kind: list(names) for kind, names in self.known.items()}
        fails = self.pick([True, True, False])
        kind = self.pick(["call", "gather", "group"])
        if kind == "call":
            call = self.call(fails)
            targets = [self.new("r")]
            tried: Statement = ["call", targets[0], *call]
        else:
            targets, tried = self.several(kind, fails)
        self.known, bound = before, self.known  # in the handler nothing of it is known
        instead = [["none", target] for target in targets]
        made = ["try", [tried, *self.block(1)], self.left_early([*instead, *self.block(1)])]
        self.known = bound
        return [made]

    def left_early(self, body: list[Statement]) -> list[Statement]:
        """Now and then the whole program ends with this block."""
        return [*body, ["leave"]] if self.pick([0, 1, 2, 3]) == 1 else body

    def source(self) -> list[Statement]:
        made = [s for _ in range(self.draw(st.integers(2, 5))) for s in self.statement()]
        if self.pick([*range(8)]) == 1:
            made += [["call", "r9", "a", [FAILS]]]
        return made


@st.composite
def served_programs(draw: Callable[[Any], Any]) -> list[Statement]:
    return ServeProgram(draw).source()
