"""What `async def serve` works with: composite tasks are awaited, and answers may still be arriving.

    async def serve(request: Question) -> Answer:
        topic, draft = await asyncio.gather(find_topic(request), write(request))
        async for piece in chunks(draft.text): ...
        return Answer(topic=topic.name, text=draft.text)

`serve` runs again from its beginning when its gateway dies: composite calls are found by their content and answer from
the log, so they cost nothing twice; side effects of its own happen at least once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class Session(Protocol):
    """One run of an app's `serve`."""

    def call(self, task: Any, request: Any) -> Awaitable[Any]:
        """The response of a composite task, as soon as it begins."""


serving: ContextVar[Session | None] = ContextVar("cornstalk_session", default=None)


class LiveStream(Generic[T]):
    """A stream field of an awaited response: iterate over its pieces, or await the whole.

    Iterating twice gives the pieces twice. An error that comes after the response has begun is raised where the stream
    is read to its end, and ends the request in any case.
    """

    __slots__ = ("_pieces", "_whole", "node", "output")

    def __init__(
        self,
        node: str,
        output: str,
        pieces: Callable[[], AsyncIterator[T]],
        whole: Callable[[], Awaitable[T]],
    ) -> None:
        self.node, self.output = node, output
        self._pieces, self._whole = pieces, whole

    def __aiter__(self) -> AsyncIterator[T]:
        return self._pieces()

    def __await__(self) -> Generator[Any, None, T]:
        return self._whole().__await__()

    def __copy__(self) -> LiveStream[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> LiveStream[T]:
        return self

    def _unread(self, *_: Any) -> Any:
        raise TypeError("this stream may still be arriving: `await` it for the whole, or iterate over `chunks(it)`")

    __str__ = __len__ = __bool__ = __iter__ = __contains__ = __getitem__ = __add__ = __radd__ = __format__ = _unread


async def chunks(value: T) -> AsyncIterator[T]:
    """The pieces of a stream field inside `serve`, whether it still arrives or is whole already."""
    if isinstance(value, LiveStream):
        async for piece in value:
            yield piece
    elif value:
        yield value
