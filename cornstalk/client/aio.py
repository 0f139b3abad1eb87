"""The asyncio client."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import httpx

from cornstalk.client import calls
from cornstalk.client.answers import AsyncAnswerStream
from cornstalk.client.ask import DEADLINE, GRACE, LARGE, Ask
from cornstalk.client.base import BaseClient, was_sent, why
from cornstalk.client.conversation import Conversation
from cornstalk.client.events import Answer, Chunk, End, R
from cornstalk.client.fields import File, Q, Request, content
from cornstalk.client.handle import AsyncAppHandle
from cornstalk.client.uploading import Uploading
from cornstalk.errors import CornstalkError
from cornstalk.extensions import Upload

if TYPE_CHECKING:
    from cornstalk.client.session import AsyncSession

log = logging.getLogger(__name__)

LEAVE_WITHIN: Final = 5.0
"""Seconds that cancelling a request may take which its caller has left."""


class _Told(AsyncAnswerStream[R]):
    """Server-sent events. The request is sent when it is first read."""

    def __init__(self, client: AsyncClient, ask: Ask, model: type[R] | None) -> None:
        super().__init__()
        self._client, self._ask, self._model = client, ask, model

    async def _told(self) -> AsyncGenerator[Chunk | End[R], None]:
        client = self._client
        ask = await client.prepared(self._ask)
        talk = Conversation(ask, ask.body(), client.urls, self._model, client.reach_within)
        try:
            while not talk.ended:
                send = talk.send()
                try:
                    async with client.http.stream(
                        send.method, send.url, headers=send.headers, content=send.content
                    ) as response:
                        if response.is_error:
                            pause = talk.refused(response.status_code, response.headers, await response.aread())
                        else:
                            self.request = talk.opened(response.headers)
                            async for data in response.aiter_bytes():
                                for event in talk.feed(data):
                                    yield event
                            pause = talk.cut("the connection was closed")
                except httpx.TransportError as error:
                    pause = talk.cut(why(error), sent=was_sent(error))
                await asyncio.sleep(pause)
        finally:
            if talk.left_running:
                await client.leave(talk.request)


class AsyncClient(BaseClient[httpx.AsyncClient]):
    """The client for asyncio; safe to share between the tasks of one event loop. Arguments: see BaseClient."""

    def _open(self, **settings: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes all connections. Requests that are still read are left to their grace."""
        await self.http.aclose()

    def app(self, name: str, request: type[Q] | None = None, response: type[R] | None = None) -> AsyncAppHandle[Q, R]:
        """An app whose request and response type checkers see. Answers are validated by `response`."""
        return AsyncAppHandle(self, name, response)

    async def invoke(
        self,
        app: str,
        request: Request | None = None,
        *,
        response_model: type[R] | None = None,
        deadline: float = DEADLINE,
        seed: int | None = None,
        idempotency_key: str | None = None,
        durable: bool = False,
        resume_grace: float = GRACE,
        retry_refused: bool = False,
        **fields: Any,
    ) -> Answer[R]:
        """One request and its whole answer: arguments and errors are those of `stream`.

        Cancelling the task cancels the request, unless it is durable: at once, or after `resume_grace` when no gateway
        had answered yet.
        """
        async with self.stream(
            app,
            request,
            response_model=response_model,
            deadline=deadline,
            seed=seed,
            idempotency_key=idempotency_key,
            durable=durable,
            resume_grace=resume_grace,
            retry_refused=retry_refused,
            **fields,
        ) as events:
            return await events.answer()

    def stream(
        self,
        app: str,
        request: Request | None = None,
        *,
        response_model: type[R] | None = None,
        deadline: float = DEADLINE,
        seed: int | None = None,
        idempotency_key: str | None = None,
        durable: bool = False,
        resume_grace: float = GRACE,
        retry_refused: bool = False,
        **fields: Any,
    ) -> AsyncAnswerStream[R]:
        """One request and its answer as it comes. Use it in `async with`, which cancels the request when it is left.

        `request` and `fields` together are the app's request; files (bytes, paths, open files) are sent as uploads.
        `deadline`: seconds from now. `idempotency_key`: the same key is the same request, whoever sends it again; each
        has its own by default. `durable`: goes on without a client. `resume_grace`: seconds for which it goes on when
        its client was cut off. `retry_refused`: when the system is full, tries again until the deadline.
        """
        ask = self.ask(
            app,
            request,
            fields,
            deadline=deadline,
            seed=seed,
            idempotency_key=idempotency_key,
            durable=durable,
            resume_grace=resume_grace,
            retry_refused=retry_refused,
        )
        return _Told(self, ask, response_model)

    def session(
        self,
        app: str,
        *,
        request_model: type[Q] | None = None,
        response_model: type[R] | None = None,
        deadline: float = DEADLINE,
        seed: int | None = None,
        durable: bool = False,
        resume_grace: float = GRACE,
        retry_refused: bool = False,
    ) -> AsyncSession[Q, R]:
        """A WebSocket for many requests of an app, with input that streams while they run. Use it in `async with`.

        The options are those of `stream`, for each of its requests; `request_model` is for type checkers.
        """
        from cornstalk.client.session import AsyncSession  # here, for who asks over HTTP does without the library

        return AsyncSession(
            self,
            app,
            response_model,
            deadline=deadline,
            seed=seed,
            durable=durable,
            resume_grace=resume_grace,
            retry_refused=retry_refused,
        )

    async def upload(self, file: File) -> Upload:
        """Sends a file apart from any request; the fields of requests take what comes back for an hour.

        What is there already is not sent, also after a cut. Raises TooLarge, Refused, Unreachable, GatewayError, and
        TypeError and OSError for the file.
        """
        return await self._sent(await asyncio.to_thread(content, "", file), math.inf, retry_refused=False)

    async def status(self, request: str) -> dict[str, Any]:
        """Where a request stands, node by node. Raises UnknownRequest."""
        return await self.call(calls.status(request))

    async def cancel(self, request: str) -> str:
        """Cancels a request: "cancelling", or how it had ended before. Raises UnknownRequest."""
        return str((await self.call(calls.cancel(request)))["status"])

    async def apps(self) -> list[dict[str, Any]]:
        """Every app: name, version, components, and the JSON schemas of its request and response."""
        found: list[dict[str, Any]] = (await self.call(calls.apps()))["apps"]
        return found

    async def deploy(self, source: str | os.PathLike[str]) -> dict[str, Any]:
        """Deploys an app, given as source text or as path: name, version, components. Needs the admin token.

        Raises AppError, which names the line; GatewayError without the right token.
        """
        return await self.call(calls.deploy(source, self._admin_token))

    async def remove(self, name: str) -> dict[str, Any]:
        """Removes an app: name, and the components that only it used. Needs the admin token. Raises UnknownApp."""
        return await self.call(calls.remove(name, self._admin_token))

    async def prepared(self, ask: Ask, from_: int = LARGE) -> Ask:
        """With its files read, and those of at least so many bytes sent, which takes some of its time."""
        if not ask.has_files:
            return ask
        began = time.monotonic()
        ask = await asyncio.to_thread(ask.read)
        for file in ask.large_files(from_):
            left = ask.deadline - (time.monotonic() - began)
            ask = ask.with_upload(file, await self._sent(file, left, ask.retry_refused))
        return ask.later(time.monotonic() - began)

    async def _sent(self, data: bytes, within: float, retry_refused: bool) -> Upload:
        sending = await asyncio.to_thread(Uploading, data, self.urls, self.reach_within, within, retry_refused)
        while sending.upload is None:
            send = sending.send()
            try:
                response = await self.http.request(send.method, send.url, headers=send.headers, content=send.content)
            except httpx.TransportError as error:
                pause = sending.cut(why(error))
            else:
                pause = sending.answered(response.status_code, response.headers, response.content)
            await asyncio.sleep(pause)
        return sending.upload

    async def leave(self, request: str) -> None:
        """Cancels a request that its caller has left. If that fails, the gateway does it after the request's grace."""
        if self.http.is_closed:
            return
        try:
            async with asyncio.timeout(LEAVE_WITHIN):
                await self.cancel(request)
        except (CornstalkError, TimeoutError) as error:
            log.info("request %s is left to its grace: %s", request, type(error).__name__)

    async def call(self, call: calls.Call) -> dict[str, Any]:
        """Any other call: its JSON. Raises the typed error for what a gateway refuses, Unreachable."""
        attempts = calls.Attempts(call, self.urls, self.reach_within)
        while True:
            try:
                response = await self.http.request(
                    call.method, attempts.url(), headers=call.headers, content=call.content
                )
            except httpx.TransportError as error:
                await asyncio.sleep(attempts.cut(why(error), sent=was_sent(error)))
            else:
                return attempts.answered(response.status_code, response.headers, response.content)
