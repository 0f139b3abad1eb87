"""Where gateways are, and how long to wait before the next try."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from cornstalk.errors import BadInput

_FIRST: Final = 0.05
_LONGEST: Final = 1.0


class Urls:
    """Gateways of one system; all are equal, and one that does not answer is tried last from then on. Thread-safe."""

    def __init__(self, urls: str | Sequence[str]) -> None:
        self._urls = tuple(u.rstrip("/") for u in ([urls] if isinstance(urls, str) else urls))
        if not self._urls or not all(u.startswith(("http://", "https://")) for u in self._urls):
            raise BadInput(f"expected http://HOST:PORT, got {urls!r}", "url")

    @property
    def all(self) -> tuple[str, ...]:
        """The one to try first comes first."""
        return self._urls

    @property
    def first(self) -> str:
        return self._urls[0]

    def __len__(self) -> int:
        return len(self._urls)

    def __str__(self) -> str:
        return ", ".join(sorted(self._urls))

    def pass_over(self, url: str) -> None:
        self._urls = (*(u for u in self._urls if u != url), url)


class Backoff:
    """Growing pauses, spread so that clients cut at once do not come back at once."""

    def __init__(self) -> None:
        self._pause = _FIRST

    def reset(self) -> None:
        self._pause = _FIRST

    def next(self) -> float:
        """Seconds to wait now."""
        pause, self._pause = self._pause, min(_LONGEST, self._pause * 2)
        return pause * random.uniform(0.5, 1.0)
