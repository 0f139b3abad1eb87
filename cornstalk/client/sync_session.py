"""Sessions for threads: an AsyncSession on an event loop in a thread of its own, for it reads and writes at once."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from anyio.from_thread import BlockingPortal, start_blocking_portal

from cornstalk.client.answers import AnswerStream
from cornstalk.client.events import Answer, Chunk, End, R
from cornstalk.client.fields import Q
from cornstalk.client.session import AsyncSession
from cornstalk.client.session_stream import AsyncSessionStream
from cornstalk.errors import CornstalkError

if TYPE_CHECKING:
    from cornstalk.client.sync import Client


class SessionStream(AnswerStream[R]):
    """As AsyncSessionStream. Any thread may send to it, one reads it."""

    def __init__(self, portal: BlockingPortal, stream: AsyncSessionStream[R]) -> None:
        super().__init__()
        self._portal, self._stream = portal, stream

    def send(self, field: str, piece: str | bytes | list[Any]) -> bool:
        """As AsyncSessionStream.send."""
        needed: bool = self._portal.call(self._stream.send, field, piece)
        return needed

    def end(self, field: str) -> bool:
        """As AsyncSessionStream.end."""
        needed: bool = self._portal.call(self._stream.end, field)
        return needed

    def cancel(self) -> None:
        """As AsyncSessionStream.cancel."""
        self._portal.call(self._stream.cancel)

    def close(self) -> None:
        """Leaves. Cancels the request if it has not ended, unless it is durable."""
        super().close()
        self._portal.call(self._stream.aclose)

    def feed(self, field: str, pieces: Iterator[Any]) -> None:
        """Sends a field from a thread of its own. Once the request has ended, the next piece ends it."""
        threading.Thread(target=self._feed, args=(field, pieces), daemon=True, name=f"feed {field}").start()

    def _feed(self, field: str, pieces: Iterator[Any]) -> None:
        with suppress(RuntimeError):  # the session was closed meanwhile
            try:
                for piece in pieces:
                    if not self.send(field, piece):
                        break
                self.end(field)
            except Exception as error:
                self._portal.call(self._stream.fail, error)

    def _told(self) -> Generator[Chunk | End[R], None, None]:
        while True:
            event = self._portal.call(anext, self._stream, None)
            self.request = self._stream.request
            if event is None:
                return
            yield event


class Session(Generic[Q, R]):
    """As AsyncSession: requests of one app over one WebSocket. Use it in `with`. Safe to share between threads."""

    def __init__(self, client: Client, app: str, model: type[R] | None, **options: Any) -> None:
        """`options`: those of `Client.stream`, for each request."""
        self._client, self._app, self._model, self._options = client, app, model, options
        self._open = ExitStack()
        self._portal: BlockingPortal | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            client = stack.enter_context(self._portal.wrap_async_context_manager(self._client.twin()))
            session: AsyncSession[Q, R] = AsyncSession(client, self._app, self._model, **self._options)
            self._session = stack.enter_context(self._portal.wrap_async_context_manager(session))
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """As AsyncSession.aclose."""
        self._portal = None
        self._open.close()

    def stream(self, request: Q | None = None, *, open: Iterable[str] = (), **fields: Any) -> SessionStream[R]:
        """As AsyncSession.stream. A Stream field whose value is an iterator is sent while the request runs."""
        if self._portal is None:
            raise CornstalkError("this session is closed, or was not entered")
        live = {n: v for n, v in fields.items() if isinstance(v, Iterator) and not hasattr(v, "read")}
        rest = {name: value for name, value in fields.items() if name not in live}
        ask = partial(self._session.stream, request, open=[*open, *live], **rest)
        stream = SessionStream(self._portal, self._portal.call(ask))
        for field, pieces in live.items():
            stream.feed(field, pieces)
        return stream

    def invoke(self, request: Q | None = None, **fields: Any) -> Answer[R]:
        """One request and its whole answer: as `stream`."""
        with self.stream(request, **fields) as stream:
            return stream.answer()
