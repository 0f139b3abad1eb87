"""Which calls give another result each time or reach outside, by their full names."""

from __future__ import annotations

import ast
from typing import Final

_CHANCE: Final = frozenset(
    (
        *(f"time.{n}" for n in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")),
        *("time.process_time", "time.localtime", "time.gmtime", "time.strftime"),
        *(f"datetime.datetime.{n}" for n in ("now", "utcnow", "today")),
        *("datetime.date.today", "uuid.uuid1", "uuid.uuid4", "os.urandom", "os.getpid"),
    )
)
_MODULES_OF_CHANCE: Final = ("random.", "secrets.", "numpy.random.")
_SEEDED: Final = frozenset(("random.Random", "numpy.random.default_rng", "numpy.random.RandomState"))
_CLOCKS_GIVEN_A_TIME: Final = frozenset(("time.localtime", "time.gmtime"))

_PRINTS: Final = ("print", "logging.", "local.log.", "local.logger.", "warnings.warn")
_OUTSIDE: Final = (
    "open",
    "input",
    "requests.",
    "httpx.",
    "aiohttp.",
    "urllib.request.",
    "socket.",
    "subprocess.",
    "sqlite3.",
)
_OUTSIDE_TOO: Final = frozenset(
    ("os.system", "os.remove", "os.rename", "os.mkdir", "os.makedirs", "shutil.rmtree", "time.sleep")
)


class Names:
    """What the names of a module stand for, as far as its imports tell."""

    def __init__(self, module: ast.Module) -> None:
        self._imported: dict[str, str] = {}
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self._imported[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def full(self, node: ast.expr | None) -> str:
        """`dt.now` -> "datetime.datetime.now" after `from datetime import datetime as dt`; "" for what is no name.

        What stands for something else than an import keeps its name; an attribute of it begins with "local.".
        """
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        first = self._imported.get(node.id)
        if first is None:
            first = f"local.{node.id}" if parts else node.id
        return ".".join((first, *reversed(parts)))


def chance(name: str, arguments: bool) -> bool:
    """Whether a call differs from pass to pass."""
    if name in _SEEDED or name in _CLOCKS_GIVEN_A_TIME:
        return not arguments
    return name in _CHANCE or name.startswith(_MODULES_OF_CHANCE)


def effect(name: str) -> tuple[str, str] | None:
    """(code, message) for a call that reaches outside each time `invoke` runs."""
    if _is(name, _PRINTS):
        return "print", f"{name.removeprefix('local.')}() runs in each pass, and to print a result waits for it"
    if name in _OUTSIDE_TOO or _is(name, _OUTSIDE):
        return "outside", f"{name}() runs in each pass: I/O belongs in a task, or in serve"
    return None


def _is(name: str, known: tuple[str, ...]) -> bool:
    return any(name == k or (k.endswith(".") and name.startswith(k)) for k in known)
