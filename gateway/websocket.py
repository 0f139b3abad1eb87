"""WebSocket `/apps/{name}`: many requests on one connection, told as SSE tells them; input that streams while they run.

    invoke  -> accepted, chunk ..., end | error        input, input_end -> the open fields of a request
    resume  -> the same from a chunk on                cancel -> error, with status cancelled       ping -> pong

An `error` with a `status` is how a request ended. One without says why a frame was refused; nothing came of the frame,
and the connection goes on. Closing the connection leaves its requests, as closing SSE does: each is cancelled after its
resume_grace. Close codes: 1001 this gateway stops, 1003 and 1007 no frame of this protocol, 1008 takes nothing, 1009 a
frame over the limit, 1011 a bug here, 1013 the broker is away, 4403 a page of another origin, 4404 no such app, 4429
too many connections.

Pressure goes back both ways: a frame is read once what the one before asked for is done, and an event is read from the
log once the client has taken the one before. So a slow client costs its socket's buffer, not memory here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from broker.errors import BrokerError
from cornstalk.errors import AppError, BadInput, CornstalkError, Refused, Unavailable, UnknownApp
from cornstalk.frames import LIMIT, join
from cornstalk.traces import where
from gateway.encode import to_json
from gateway.errors import answer_of
from gateway.frames import BadFrame, Cancel, Frame, Garbled, Input, InputEnd, Invoke, Ping, Resume, read
from gateway.service import Service
from gateway.sockets import CLOSE_WAIT
from gateway.talk import Gone, Talk

log = logging.getLogger(__name__)

router = APIRouter()

FRAME_LIMIT: Final = LIMIT
"""Bytes of one frame from a client."""
REQUESTS: Final = 32
"""Requests under way on one connection."""
TAKE_WAIT: Final = 60.0
"""Seconds a client may leave one frame untaken before it counts as gone."""
OVER: Final = 256
"""Ids of ended requests for which late frames are dropped without a word."""


@router.websocket("/apps/{name}")
async def converse(socket: WebSocket, name: str) -> None:
    """One connection, to its end."""
    service: Service = socket.app.state.service
    await socket.accept()
    if not socket.app.state.origins.admit(socket.headers):  # unlike fetch, it is open to any page that a user visits
        await socket.close(4403, "this page is of another origin than the gateway")
    elif service.sockets.full:
        await socket.close(4429, "this gateway has as many connections as it takes: try another, or later")
    else:
        connection = Connection(service, socket, name)
        with service.sockets.held(connection):
            await connection.run()


class Connection:
    """One client. Holds nothing that is not stored: when it ends, however it ends, its requests can be resumed."""

    def __init__(self, service: Service, socket: WebSocket, app: str) -> None:
        self._service, self._socket, self._app = service, socket, app
        self._talks: dict[str, Talk] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._sending = asyncio.Lock()
        self._stopping = False
        self._close: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """To the end of the connection; then its requests are left."""
        await self._look_up()
        reading = asyncio.create_task(self._read())
        try:
            await asyncio.wait((reading, self._close), return_when=asyncio.FIRST_COMPLETED)
            if self._close.done():
                async with asyncio.timeout(CLOSE_WAIT):
                    await self._socket.close(*self._close.result())
        except (TimeoutError, WebSocketDisconnect, RuntimeError):
            pass  # it does not even take that, or has gone meanwhile
        finally:
            for task in (reading, *self._tasks):
                task.cancel()
            await asyncio.gather(reading, *self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """This gateway stops: no new requests; closed with 1001 once those under way have ended."""
        self._stopping = True
        if not self._talks:
            self.leave()

    def leave(self) -> None:
        """Closes with 1001 at once; the client resumes elsewhere."""
        self._shut(1001, "this gateway stops: resume on another one")

    def _shut(self, code: int, reason: str) -> None:
        if not self._close.done():
            self._close.set_result((code, reason))

    async def _look_up(self) -> None:
        try:
            await self._service.apps.current(self._app)
        except UnknownApp as error:
            self._shut(4404, _reason(error))
        except AppError as error:
            self._shut(1011, _reason(error))
        except BrokerError as error:
            self._shut(1013, _reason(error))

    async def _read(self) -> None:
        with suppress(WebSocketDisconnect, Gone):
            try:
                while True:
                    await self._handle(await self._receive())
            except Garbled as error:
                self._shut(error.code, _reason(error))
            except (WebSocketDisconnect, Gone):
                raise
            except Exception as error:
                log.error("a connection to %s is closed: %s", self._app, where(error))
                self._shut(1011, "a bug in this gateway; its log says more")

    async def _receive(self) -> str | bytes:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        found: str | bytes = message["bytes"] if text is None else text
        return found

    async def _handle(self, message: str | bytes) -> None:
        id = ""
        try:
            frame = read(message)
            id = "" if isinstance(frame, Ping) else frame.id
            await self._take(frame)
        except BadFrame as error:
            await self._refuse(error.id, error)
        except (CornstalkError, BrokerError) as error:
            await self._refuse(id, error)

    async def _take(self, frame: Frame) -> None:
        match frame:
            case Ping():
                await self._send(b'{"type":"pong"}')
            case Invoke() | Resume():
                self._begin(frame)
            case Input() | InputEnd() | Cancel():
                talk = self._talks.get(frame.id)
                if talk is not None:
                    await talk.take(frame)
                elif frame.id not in self._over:
                    raise BadInput("no request of this id is under way on this connection", "id")

    def _begin(self, frame: Invoke | Resume) -> None:
        if self._stopping:
            raise Unavailable("this gateway stops: connect to another one", retry_after=1.0)
        there = self._talks.get(frame.id)
        if there is not None and not there.over:
            raise BadInput("a request of this id is under way on this connection", "id")
        if len(self._talks) >= REQUESTS:
            raise Refused(f"{REQUESTS} requests are under way on this connection", retry_after=1.0)
        self._over.pop(frame.id, None)
        talk = Talk(self._service, self._app, partial(self._say, frame.id), partial(self._refuse, frame.id))
        self._talks[frame.id] = talk
        task = asyncio.create_task(self._talk(talk, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _talk(self, talk: Talk, frame: Invoke | Resume) -> None:
        try:
            await talk.run(frame)
        except Gone:
            self._shut(1008, f"took nothing for {TAKE_WAIT:.0f} s")
        finally:
            self._forget(frame.id, talk)
            if self._stopping and not self._talks:
                self.leave()

    def _forget(self, id: str, talk: Talk) -> None:
        if self._talks.get(id) is not talk:
            return  # the client has used the id again
        del self._talks[id]
        self._over[id] = None
        if len(self._over) > OVER:
            self._over.popitem(last=False)

    async def _refuse(self, id: str, error: Exception) -> None:
        """Tells of a frame from which nothing came, or of what a gateway cannot go on with."""
        answered = answer_of(error)
        about = answered.error
        if isinstance(error, Refused):
            about = about | {"retry_after": error.retry_after}
        await self._say(id, "error", {"error": about})

    async def _say(self, id: str, kind: str, data: dict[str, Any], seq: int = 0) -> None:
        """The content as SSE has it, byte for byte, behind the fields that say whose it is; bytes stand beside it."""
        head: dict[str, Any] = {"type": kind} | ({"id": id} if id else {}) | ({"seq": seq} if seq else {})
        payload = data.get("data")
        if kind == "chunk" and isinstance(payload, bytes):
            await self._send(join(_object(head, {k: v for k, v in data.items() if k != "data"}), payload), binary=True)
        else:
            await self._send(_object(head, data))

    async def _send(self, frame: bytes, binary: bool = False) -> None:
        try:
            async with asyncio.timeout(TAKE_WAIT), self._sending:
                await self._socket.send(
                    {"type": "websocket.send", **({"bytes": frame} if binary else {"text": frame.decode()})}
                )
        except (TimeoutError, WebSocketDisconnect, RuntimeError) as error:
            raise Gone from error


def _object(head: dict[str, Any], data: dict[str, Any]) -> bytes:
    first, rest = to_json(head), to_json(data)
    return first[:-1] + b"," + rest[1:] if data else first


def _reason(error: Exception) -> str:
    """At most 123 bytes, which is what a close frame carries."""
    return str(error).encode()[:123].decode(errors="ignore")
