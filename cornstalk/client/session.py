"""Many requests of one app over one WebSocket, with input that streams while they run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from cornstalk.client.ask import path_of
from cornstalk.client.base import CONNECT_WITHIN
from cornstalk.client.events import Answer, R
from cornstalk.client.failures import closing, no_gateway, refusal
from cornstalk.client.fields import Q, bytes_of, live_fields
from cornstalk.client.session_stream import AsyncSessionStream, Pieces
from cornstalk.client.talk import Elsewhere, Talk, decode
from cornstalk.client.urls import Backoff
from cornstalk.errors import CornstalkError, Refused

if TYPE_CHECKING:
    from cornstalk.client.aio import AsyncClient

log = logging.getLogger(__name__)

UNREAD: Final = 16 << 20
"""Bytes that may wait to be read, in all requests of a session together; then the connection waits."""
CLOSE_WITHIN: Final = 2.0
"""Seconds that closing a connection may take."""


class AsyncSession(Generic[Q, R]):
    """Requests of one app, as many at once as a gateway takes on a connection (32). Use it in `async with`.

    Connects when a request needs it, again after each cut, to whichever gateway answers; requests go on without their
    reader noticing. Leaving it cancels those that have not ended, unless they are durable. What comes waits to be read,
    up to UNREAD bytes: who leaves more of one request unread holds up the others.
    """

    def __init__(self, client: AsyncClient, app: str, model: type[R] | None, **options: Any) -> None:
        """`options`: those of `AsyncClient.stream`, for each request."""
        self.client, self._app, self._model, self._options = client, app, model, options
        self._streams: dict[str, AsyncSessionStream[R]] = {}
        self._count = 0
        self._backoff, self._tries = Backoff(), 0
        self._busy, self._room = asyncio.Event(), asyncio.Event()
        self._unread = 0
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leaves every request, and closes the connection."""
        self._closed = True
        for stream in list(self._streams.values()):
            stream.fail(CornstalkError("the session was closed"))
            await stream.leave()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def stream(self, request: Q | None = None, *, open: Iterable[str] = (), **fields: Any) -> AsyncSessionStream[R]:
        """Sends one request; its answer as it comes. Use it in `async with`, which cancels the request when it is left.

        `request` and `fields` together are the app's request. A Stream field whose value is an async iterator is sent
        while the request runs; so are the fields named in `open`, piece by piece as `AsyncSessionStream.send` is given
        them. Bytes, paths and open files are uploads.
        """
        if self._closed:
            raise CornstalkError("this session is closed")
        plain = {name: data for name, data in bytes_of(request).items() if name not in fields}
        # JSON has no bytes: they are streamed; and "" is what it says for none
        fields = dict.fromkeys((name for name, data in plain.items() if not data), "") | fields
        ask = self.client.ask(self._app, request, fields, **self._options)
        live: dict[str, Pieces] = {name: data for name, data in plain.items() if data}
        live |= live_fields(ask.fields) | dict.fromkeys(open)
        self._count += 1
        stream = AsyncSessionStream(self, f"{self._count}", ask.without(live.keys()), live, self._model)
        self._streams[stream.id] = stream
        self._busy.set()
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return stream

    async def invoke(self, request: Q | None = None, **fields: Any) -> Answer[R]:
        """One request and its whole answer: as `stream`."""
        async with self.stream(request, **fields) as stream:
            return await stream.answer()

    # ------------------------------------------------------------ for its streams

    def taken(self, nbytes: int) -> None:
        """So many bytes were read."""
        self._unread -= nbytes
        if self._unread <= UNREAD:
            self._room.set()

    async def give_up(self, talk: Talk[R]) -> None:
        """Cancels a request whose end nobody waits for."""
        if self.socket is not None and talk.begun:
            with suppress(ConnectionClosed):
                await self.socket.send(talk.cancelling())
                return
        if talk.request:
            await self.client.leave(talk.request)

    def forget(self, stream: AsyncSessionStream[R]) -> None:
        """It has ended."""
        self._streams.pop(stream.id, None)
        if not self._streams:
            self._busy.clear()

    # ------------------------------------------------------------ the connection

    async def _run(self) -> None:
        while True:
            await self._busy.wait()
            url = self.client.urls.first
            refused: Refused | None = None
            try:
                refused = await self._connected(url)
                why = f"{url} closed the connection"
            except Elsewhere as error:
                why = str(error.__cause__)
            except (OSError, WebSocketException) as error:
                why = str(error) or type(error).__name__
            except ValueError as error:
                why = str(error)
                self._all_refused(no_gateway(url))
            finally:
                self.socket = None
            self.client.urls.pass_over(url)
            self._tries += 1
            for stream in list(self._streams.values()):
                stream.cut(why, refused, all_tried=self._tries >= len(self.client.urls))
            await asyncio.sleep(self._backoff.next())

    async def _connected(self, url: str) -> Refused | None:
        """One connection, to its end. Returns that the gateway had no room.

        Raises OSError and WebSocketException when none came about; Elsewhere; ValueError for what is no frame.
        """
        silent_for = self.client.silent_for
        try:
            async with connect(
                "ws" + url.removeprefix("http") + path_of(self._app),
                open_timeout=min(silent_for, CONNECT_WITHIN),
                ping_interval=silent_for / 3,
                ping_timeout=silent_for * 2 / 3,
                close_timeout=CLOSE_WITHIN,
                max_size=None,
                compression=None,
                proxy=None,
            ) as socket:
                self.socket = socket
                for stream in list(self._streams.values()):
                    await stream.begin(socket)
                with suppress(ConnectionClosed):
                    while True:
                        await self._hear(await socket.recv())
        except InvalidStatus as invalid:  # what answers is a proxy, or nothing of ours
            said = invalid.response
            return self._all_refused(refusal(said.status_code, said.headers, bytes(said.body)))
        error = closing(socket.close_code or 1006, socket.close_reason or "", url)
        return None if error is None else self._all_refused(error)

    def _all_refused(self, error: CornstalkError) -> Refused | None:
        if isinstance(error, Refused):
            return error
        for stream in list(self._streams.values()):
            stream.fail(error)
        return None

    async def _hear(self, message: str | bytes) -> None:
        frame = decode(message)
        self._tries = 0
        self._backoff.reset()
        stream = self._streams.get(frame.get("id", ""))
        if stream is not None:
            self._unread += stream.hear(frame, len(message))
        while self._unread > UNREAD:
            self._room.clear()
            await self._room.wait()
