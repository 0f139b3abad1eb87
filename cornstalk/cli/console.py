"""What a person reads: results on standard output, progress on standard error and only when that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console


WIDTH: Final = 100
"""Characters of a line where no terminal says how many there are, and something must be as wide as that."""
UNBOUNDED: Final = 10_000


def stdout(otherwise: int = WIDTH) -> Console:
    """For tables and other results: as wide as the terminal, or `otherwise` characters where there is none."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=otherwise)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def note(message: str, **style: Any) -> None:
    """One line of progress."""
    console = stderr()
    if console.is_terminal:
        console.print(message, markup=False, **style)


@contextmanager
def working(message: str) -> Iterator[None]:
    """A spinner while something takes time."""
    console = stderr()
    if console.is_terminal:
        with console.status(message):
            yield
    else:
        yield
