"""The answer of one request as it comes, however it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Self

from cornstalk.client.events import Answer, Chunk, End, R
from cornstalk.errors import CornstalkError


def whole(answer: Answer[R] | None) -> Answer[R]:
    """The answer that a stream has ended with."""
    if answer is None:
        raise CornstalkError("this stream was closed, or failed, before its end")
    return answer


class AsyncAnswerStream(ABC, Generic[R]):
    """The events of one request: each Chunk once, in stored order, then End.

    Survives cut connections and gateways that die. Closing it before its end cancels the request, unless it is durable.
    Raises RequestFailed, BadInput and its kinds, Refused, Unreachable, TimedOut, GatewayError, and ValidationError of
    pydantic for a response that is not as the model says.
    """

    def __init__(self) -> None:
        self._events = self._told()
        self._answer: Answer[R] | None = None
        self.request = ""
        """The id of the request, once a gateway has accepted it."""

    @abstractmethod
    def _told(self) -> AsyncGenerator[Chunk | End[R], None]:
        """The events. Closed when the stream is left."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk | End[R]:
        event = await anext(self._events)
        if isinstance(event, End):
            self._answer = event.answer
        return event

    async def text(self, field: str) -> AsyncIterator[str]:
        """The pieces of a text field. Those of other fields are part of the answer."""
        async for piece in self.pieces(field):
            yield str(piece)

    async def pieces(self, field: str) -> AsyncIterator[Any]:
        """The pieces of a field: str, bytes or list."""
        async for event in self:
            if isinstance(event, Chunk) and field in event.fields:
                yield event.data

    async def answer(self) -> Answer[R]:
        """Reads on to the end."""
        async for _ in self:
            pass
        return whole(self._answer)

    async def aclose(self) -> None:
        """Leaves. Cancels the request if it has not ended."""
        await self._events.aclose()


class AnswerStream(ABC, Generic[R]):
    """As AsyncAnswerStream. One thread reads it."""

    def __init__(self) -> None:
        self._events = self._told()
        self._answer: Answer[R] | None = None
        self.request = ""
        """The id of the request, once a gateway has accepted it."""

    @abstractmethod
    def _told(self) -> Generator[Chunk | End[R], None, None]:
        """The events. Closed when the stream is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk | End[R]:
        event = next(self._events)
        if isinstance(event, End):
            self._answer = event.answer
        return event

    def text(self, field: str) -> Iterator[str]:
        """The pieces of a text field. Those of other fields are part of the answer."""
        for piece in self.pieces(field):
            yield str(piece)

    def pieces(self, field: str) -> Iterator[Any]:
        """The pieces of a field: str, bytes or list."""
        for event in self:
            if isinstance(event, Chunk) and field in event.fields:
                yield event.data

    def answer(self) -> Answer[R]:
        """Reads on to the end."""
        for _ in self:
            pass
        return whole(self._answer)

    def close(self) -> None:
        """Leaves. Cancels the request if it has not ended."""
        self._events.close()
