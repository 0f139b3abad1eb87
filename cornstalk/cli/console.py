"""Progress for a person: on standard error, and only when that is a terminal. Results never go through here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


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
