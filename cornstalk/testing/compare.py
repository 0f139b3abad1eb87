"""Whether two runs ended alike, and where they differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cornstalk.errors import described
from cornstalk.messages import encode
from cornstalk.types import Tensor
from cornstalk.values import wire


@dataclass(frozen=True)
class Ending:
    """A response, or the error that ended the request."""

    value: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        return f"answered {_short(self.value)}" if self.error is None else f"raised {described(self.error)}"


def ending(call: Callable[[], Any]) -> Ending:
    """How a call ends. An AssertionError is the test's own and passes through."""
    try:
        return Ending(call())
    except AssertionError:
        raise
    except Exception as error:
        return Ending(error=error)


def difference(one: Ending, other: Ending, in_order: bool = True) -> str:
    """In words; "" if they ended alike. Unless calls are made `in_order`, any of several failures may come first."""
    if one.error is not None or other.error is not None:
        same = _error(one) == _error(other) if in_order else type(one.error) is type(other.error)
        return "" if same else f"the one {one}, the other {other}"
    first, second = _plain(one.value), _plain(other.value)
    return "" if _equal(first, second) else _where(first, second, "")


def _error(ended: Ending) -> tuple[str, str]:
    if ended.error is None:
        return "", ""
    return type(ended.error).__name__, str(ended.error)


def _plain(value: Any) -> Any:
    return wire(value, lambda v: "a tensor" if type(v) is Tensor else v)


def _equal(one: Any, other: Any) -> bool:
    try:
        return encode(one) == encode(other)
    except TypeError:
        return bool(one == other)


def _where(one: Any, other: Any, path: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys((*one, *other)):
            if key not in one or key not in other or not _equal(one[key], other[key]):
                return _where(one.get(key), other.get(key), f"{path}.{key}" if path else str(key))
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            if not _equal(a, b):
                return _where(a, b, f"{path}[{index}]")
    return f"{path or 'the response'} was {_short(one)}, then {_short(other)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
