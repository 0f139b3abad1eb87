"""One request of a WebSocket connection: accepted or found again, told to its end; its live input."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from broker.crash import crash_at
from broker.errors import BrokerError, DeadlineExceeded, RequestEnded
from cornstalk.app import App
from cornstalk.errors import BadInput, CornstalkError
from cornstalk.live import stream_port
from cornstalk.messages import INPUT, Finish, StreamRef
from cornstalk.traces import where
from gateway.answers import read_state
from gateway.events import events
from gateway.frames import Cancel, Input, InputEnd, Invoke, Resume
from gateway.http import checked_id
from gateway.intake import checked_input
from gateway.live import LiveInput, TakenOver
from gateway.options import frame_options
from gateway.requests import Run
from gateway.service import Service
from gateway.streams import media_types

log = logging.getLogger(__name__)

Say = Callable[[str, dict[str, Any], int], Awaitable[None]]
"""Sends one frame of this request: its type, its content, the sequence of a chunk."""


class Gone(Exception):
    """Raised by Say when the client is gone, or does not take what it is sent."""


class Talk:
    """Holds nothing that is not stored: the client resumes it anywhere. Ending it leaves the request."""

    def __init__(self, service: Service, app: str, say: Say, fail: Callable[[Exception], Awaitable[None]]) -> None:
        """`app`: name of the app this connection is for. `fail` tells the client of an error that did not end the
        request, if one was accepted.
        """
        self._service, self._app, self._say, self._fail = service, app, say, fail
        self._request = ""
        self._live: LiveInput | None = None
        self._input_lost = False
        self.over = False
        """The client is told, or is being told, how the request ended: its id is free again."""
        self._opened = asyncio.Event()

    async def run(self, frame: Invoke | Resume) -> None:
        """Tells everything to the request's end. Raises Gone."""
        try:
            async with AsyncExitStack() as stack:
                run, app = await self._attached(stack, frame)
                inputs = self._live.stored if self._live is not None else {}
                await self._say("accepted", {"request": self._request, "inputs": inputs}, 0)
                self._opened.set()
                after = frame.after if isinstance(frame, Resume) else 0
                await self._tell(run, app, after)
        except Gone:
            raise
        except Exception as error:  # one that nobody foresaw ends this request only
            if not isinstance(error, (CornstalkError, BrokerError)):
                log.error("request %s cannot be told: %s", self._request or "(not accepted)", where(error))
            self.over = True
            await self._fail(error)
        finally:
            self._opened.set()

    async def take(self, frame: Input | InputEnd | Cancel) -> None:
        """A later frame of the client. What comes for a request that has ended is dropped: the client hears of the end.

        Raises BadInput, TakenOver and what the broker raises.
        """
        await self._opened.wait()
        if self.over or not self._request:
            return  # the client is told of its end, or that it was refused
        if isinstance(frame, Cancel):
            await self._service.requests.cancel(self._request, "cancelled by the client")
            return
        if self._live is None:
            raise BadInput("no field of this request is open on this connection", frame.field)
        if self._input_lost:
            return
        try:
            await (
                self._live.end(frame.field) if isinstance(frame, InputEnd) else self._live.add(frame.field, frame.data)
            )
        except (RequestEnded, DeadlineExceeded):
            self._input_lost = True
        except (TakenOver, BrokerError):
            self._input_lost = True
            raise

    async def _attached(self, stack: AsyncExitStack, frame: Invoke | Resume) -> tuple[Run | Finish, App | None]:
        """What is accepted is attached to, even if the client leaves meanwhile: only then is it missed."""
        opening = asyncio.create_task(self._open(stack, frame))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.exception()
            raise

    async def _open(self, stack: AsyncExitStack, frame: Invoke | Resume) -> tuple[Run | Finish, App | None]:
        if isinstance(frame, Resume):
            fresh, request = False, checked_id(frame.request)
            app = await self._app_of(request)
        else:
            fresh, request, app = await self._accept(frame)
        run = await stack.enter_async_context(self._service.requests.attached(request))
        self._request = request
        if isinstance(run, Run) and app is not None and not (isinstance(frame, Resume) and frame.listen):
            await self._open_input(stack, run, app, fresh)
        return run, app

    async def _accept(self, frame: Invoke) -> tuple[bool, str, App]:
        service = self._service
        app = await service.apps.current(self._app)
        options = frame_options(self._app, frame.options)
        within = options.deadline - time.time()
        await service.admission.check(tuple(app.components()), options.lane, within, options.durable)
        live = {field: StreamRef(options.request, INPUT, 0, field) for field in frame.open}
        value = await checked_input(app, dict(frame.input), service.uploads, options.deadline, live)
        await service.requests.accept(app, value, options)
        frame.input.clear()  # stored; it may be large, and the frame lives as long as the request
        return not options.idempotent, options.request, app

    async def _app_of(self, request: str) -> App | None:
        """The version of the app on which a request began; None if only its end is left. Raises BadInput."""
        accepted = (await read_state(self._service.facts, request)).accepted
        if accepted is None:
            return None
        if accepted.app != self._app:
            raise BadInput(f"this is a request of app {accepted.app}, not of {self._app}", "request")
        return await self._service.apps.version(accepted.app, accepted.app_version)

    async def _open_input(self, stack: AsyncExitStack, run: Run, app: App, fresh: bool) -> None:
        live = [name for name, value in run.accepted.input.items() if isinstance(value, StreamRef)]
        if not live:
            return
        ports = {name: stream_port(app.request_model, name) for name in live}
        broker, facts = self._service.broker, self._service.facts
        self._live = await LiveInput.open(broker, facts, run.accepted, ports, fresh=fresh)
        stack.push_async_callback(self._live.close)

    async def _tell(self, run: Run | Finish, app: App | None, after: int) -> None:
        broker, facts = self._service.broker, self._service.facts
        async for event in events(broker, facts, run, self._request, media_types(app), after):
            self.over = event.kind in ("end", "error")
            if event.kind != "ping":  # the protocol's own pings say that the connection lives
                await self._say(event.kind, event.data, event.seq)
                crash_at("gateway.told")
