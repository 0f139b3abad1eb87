"""One request of a session: its events as they come, its input as it is said."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cornstalk.client.answers import AsyncAnswerStream
from cornstalk.client.ask import Ask
from cornstalk.client.events import Chunk, End, R
from cornstalk.client.talk import Again, Elsewhere, Talk
from cornstalk.errors import Refused

if TYPE_CHECKING:
    from cornstalk.client.session import AsyncSession

Pieces = AsyncIterable[Any] | bytes | None
"""Of an open field: as they come, all of them, or as they are given to `send`."""


class AsyncSessionStream(AsyncAnswerStream[R], Generic[R]):
    """One request of a session. Sent at once, whether it is read or not."""

    def __init__(
        self, session: AsyncSession[Any, R], id: str, ask: Ask, live: Mapping[str, Pieces], model: type[R] | None
    ) -> None:
        super().__init__()
        self._session, self.id, self._ask, self._live, self._model = session, id, ask, live, model
        self._talk: Talk[R] | None = None
        self._heard: deque[tuple[Chunk | End[R] | BaseException, int]] = deque()
        self._over = False  # nothing more comes
        self._left = False
        self._ready, self._news = asyncio.Event(), asyncio.Event()  # it may be talked to; something was heard
        self._wake, self._sent = asyncio.Event(), asyncio.Event()  # something may be to send; all of it is sent
        self._tasks: set[asyncio.Task[None]] = set()
        self._do(self._start())

    # ------------------------------------------------------------ for its user

    async def send(self, field: str, piece: str | bytes | list[Any]) -> bool:
        """The next piece of an open field. Waits until a gateway takes it; False if nobody needs it any more.

        One task sends to a field. Raises BadInput.
        """
        return await self._say(lambda talk: talk.add(field, piece))

    async def end(self, field: str) -> bool:
        """No more pieces of an open field. As `send`."""
        return await self._say(lambda talk: talk.end(field))

    async def cancel(self) -> None:
        """Ends the request before its time: reading on raises RequestFailed with status_word "cancelled"."""
        await self._say(lambda talk: talk.cancel())

    async def aclose(self) -> None:
        """Leaves. Cancels the request if it has not ended, unless it is durable."""
        await self._events.aclose()
        await self.leave()

    # ------------------------------------------------------------ for its session

    async def begin(self, socket: ClientConnection) -> None:
        """On a connection: sends the first frame, if that was not done yet."""
        talk = self._talk
        if talk is None or talk.begun or self._over:
            return
        try:
            frame = talk.begin()
        except Exception as error:
            self.fail(error)
            return
        with suppress(ConnectionClosed):  # its reader hears of that too
            await socket.send(frame)

    def hear(self, frame: Mapping[str, Any], nbytes: int) -> int:
        """A frame for this request. Returns how many of its bytes wait to be read. Raises Elsewhere."""
        talk = self._talk
        if talk is None or self._over:
            return 0
        try:
            for event in (events := list(talk.hear(frame))):
                self._heard.append((event, nbytes))
                self._over |= isinstance(event, End)
                self._news.set()
            return nbytes * len(events)
        except Again as again:
            self._do(self._begin_again(again.pause))
        except Elsewhere:
            raise
        except Exception as error:  # of what the gateway says, or of the model that refuses the answer
            self.fail(error)
        finally:
            self.request = talk.request
            self._wake.set()
        return 0

    def cut(self, why: str, refused: Refused | None, *, all_tried: bool) -> None:
        """The connection ended, or none came about."""
        if self._talk is not None and not self._over:
            try:
                self._talk.cut(why, refused, all_tried=all_tried)
            except Exception as error:
                self.fail(error)

    def fail(self, error: BaseException) -> None:
        """It ends with this error, which its reader gets after what came before."""
        if not self._over:
            self._over = True
            self._heard.append((error, 0))
            self._news.set()
            self._wake.set()
            self._ready.set()

    async def leave(self) -> None:
        """Its user goes. Cancels the request if it has not ended."""
        if self._left:
            return
        self._left = self._over = True
        self._session.forget(self)
        self._session.taken(sum(nbytes for _, nbytes in self._heard))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sent.set()
        if self._talk is not None and self._talk.left_running:
            await self._session.give_up(self._talk)

    # ------------------------------------------------------------ inside

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self) -> None:
        """Sends its files, then its first frame; then whatever is said."""
        client = self._session.client
        try:
            ask = await client.prepared(self._ask, 0)
            self._talk = Talk(self.id, ask, self._live, self._model, client.reach_within)
        except Exception as error:
            self.fail(error)
            return
        self._ready.set()
        if self._session.socket is not None:
            await self.begin(self._session.socket)
        for field, pieces in self._live.items():
            if pieces is not None:
                self._do(self._feed(field, pieces))
        await self._write(self._talk)

    async def _begin_again(self, pause: float) -> None:
        await asyncio.sleep(pause)
        if self._session.socket is not None:
            await self.begin(self._session.socket)

    async def _write(self, talk: Talk[R]) -> None:
        while not self._over:
            socket = self._session.socket
            frame = talk.next_frame() if socket is not None else None
            if socket is None or frame is None:
                if not talk.waiting:
                    self._sent.set()
                self._wake.clear()
                await self._wake.wait()
            else:
                with suppress(ConnectionClosed):  # said again on the next one
                    await socket.send(frame)
        self._sent.set()

    async def _feed(self, field: str, pieces: AsyncIterable[Any] | bytes) -> None:
        try:
            if isinstance(pieces, bytes):
                await self.send(field, pieces)
            else:
                async for piece in pieces:
                    if not await self.send(field, piece):
                        break
            await self.end(field)
        except Exception as error:
            self.fail(error)
        finally:
            if isinstance(pieces, AsyncGenerator):
                await pieces.aclose()

    async def _say(self, what: Callable[[Talk[R]], None]) -> bool:
        await self._ready.wait()
        talk = self._talk
        if self._over or talk is None:
            return False
        what(talk)
        while talk.waiting and not self._over:
            self._sent.clear()
            self._wake.set()
            await self._sent.wait()
        return not self._over

    async def _told(self) -> AsyncGenerator[Chunk | End[R], None]:
        while True:
            while not self._heard:
                await self._more()
            event, nbytes = self._heard.popleft()
            self._session.taken(nbytes)
            if isinstance(event, BaseException):
                await self.leave()
                raise event
            if isinstance(event, End):
                await self.leave()
            yield event
            if isinstance(event, End):
                return

    async def _more(self) -> None:
        """Waits for the next event, or fails when it is awaited in vain."""
        self._news.clear()
        talk = self._talk
        try:
            async with asyncio.timeout(None if talk is None else max(0.0, talk.patience)):
                await self._news.wait()
        except TimeoutError:
            if talk is not None and talk.patience <= 0:
                self.fail(talk.late())
