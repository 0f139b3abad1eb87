"""The client for threads: `aio.py` without asyncio. What is said there holds here."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from cornstalk.client import calls
from cornstalk.client.aio import AsyncClient
from cornstalk.client.answers import AnswerStream
from cornstalk.client.ask import DEADLINE, GRACE, LARGE, Ask
from cornstalk.client.base import BaseClient, was_sent, why
from cornstalk.client.conversation import Conversation
from cornstalk.client.events import Answer, Chunk, End, R
from cornstalk.client.fields import File, Q, Request, content
from cornstalk.client.handle import AppHandle
from cornstalk.client.uploading import Uploading
from cornstalk.errors import CornstalkError
from cornstalk.extensions import Upload

if TYPE_CHECKING:
    from cornstalk.client.sync_session import Session

log = logging.getLogger(__name__)


class _Told(AnswerStream[R]):
    """Server-sent events. The request is sent when it is first read."""

    def __init__(self, client: Client, ask: Ask, model: type[R] | None) -> None:
        super().__init__()
        self._client, self._ask, self._model = client, ask, model

    def _told(self) -> Generator[Chunk | End[R], None, None]:
        client = self._client
        ask = client.prepared(self._ask)
        talk = Conversation(ask, ask.body(), client.urls, self._model, client.reach_within)
        try:
            while not talk.ended:
                send = talk.send()
                try:
                    with client.http.stream(
                        send.method, send.url, headers=send.headers, content=send.content
                    ) as response:
                        if response.is_error:
                            pause = talk.refused(response.status_code, response.headers, response.read())
                        else:
                            self.request = talk.opened(response.headers)
                            for data in response.iter_bytes():
                                yield from talk.feed(data)
                            pause = talk.cut("the connection was closed")
                except httpx.TransportError as error:
                    pause = talk.cut(why(error), sent=was_sent(error))
                time.sleep(pause)
        finally:
            if talk.left_running:
                client.leave(talk.request)


class Client(BaseClient[httpx.Client]):
    """The client for threads; safe to share between them. Arguments: see BaseClient."""

    def _open(self, **settings: Any) -> httpx.Client:
        return httpx.Client(**settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections. Requests that are still read are left to their grace."""
        self.http.close()

    def app(self, name: str, request: type[Q] | None = None, response: type[R] | None = None) -> AppHandle[Q, R]:
        """An app whose request and response type checkers see. Answers are validated by `response`."""
        return AppHandle(self, name, response)

    def invoke(
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
        """One request and its whole answer: arguments and errors are those of `stream`."""
        with self.stream(
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
            return events.answer()

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
    ) -> AnswerStream[R]:
        """One request and its answer as it comes: as AsyncClient.stream, in `with`."""
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
    ) -> Session[Q, R]:
        """As AsyncClient.session, in `with`."""
        from cornstalk.client.sync_session import Session  # here, for who asks over HTTP does without the library

        return Session(
            self,
            app,
            response_model,
            deadline=deadline,
            seed=seed,
            durable=durable,
            resume_grace=resume_grace,
            retry_refused=retry_refused,
        )

    def upload(self, file: File) -> Upload:
        """As AsyncClient.upload."""
        return self._sent(content("", file), math.inf, retry_refused=False)

    def twin(self) -> AsyncClient:
        """The same for asyncio."""
        return AsyncClient(self.urls.all, tenant=self._tenant, timeout=self.silent_for, reach_within=self.reach_within)

    def status(self, request: str) -> dict[str, Any]:
        """Where a request stands, node by node. Raises UnknownRequest."""
        return self.call(calls.status(request))

    def cancel(self, request: str) -> str:
        """Cancels a request: "cancelling", or how it had ended before. Raises UnknownRequest."""
        return str(self.call(calls.cancel(request))["status"])

    def apps(self) -> list[dict[str, Any]]:
        """Every app: name, version, components, and the JSON schemas of its request and response."""
        found: list[dict[str, Any]] = self.call(calls.apps())["apps"]
        return found

    def deploy(self, source: str | os.PathLike[str]) -> dict[str, Any]:
        """As AsyncClient.deploy."""
        return self.call(calls.deploy(source, self._admin_token))

    def remove(self, name: str) -> dict[str, Any]:
        """As AsyncClient.remove."""
        return self.call(calls.remove(name, self._admin_token))

    def prepared(self, ask: Ask, from_: int = LARGE) -> Ask:
        """As AsyncClient.prepared."""
        if not ask.has_files:
            return ask
        began, ask = time.monotonic(), ask.read()
        for file in ask.large_files(from_):
            left = ask.deadline - (time.monotonic() - began)
            ask = ask.with_upload(file, self._sent(file, left, ask.retry_refused))
        return ask.later(time.monotonic() - began)

    def _sent(self, data: bytes, within: float, retry_refused: bool) -> Upload:
        sending = Uploading(data, self.urls, self.reach_within, within, retry_refused)
        while sending.upload is None:
            send = sending.send()
            try:
                response = self.http.request(send.method, send.url, headers=send.headers, content=send.content)
            except httpx.TransportError as error:
                pause = sending.cut(why(error))
            else:
                pause = sending.answered(response.status_code, response.headers, response.content)
            time.sleep(pause)
        return sending.upload

    def leave(self, request: str) -> None:
        """Cancels a request that its caller has left. If that fails, the gateway does it after the request's grace."""
        if self.http.is_closed:
            return
        try:
            self.cancel(request)
        except CornstalkError as error:
            log.info("request %s is left to its grace: %s", request, type(error).__name__)

    def call(self, call: calls.Call) -> dict[str, Any]:
        """Any other call: its JSON. Raises the typed error for what a gateway refuses, Unreachable."""
        attempts = calls.Attempts(call, self.urls, self.reach_within)
        while True:
            try:
                response = self.http.request(call.method, attempts.url(), headers=call.headers, content=call.content)
            except httpx.TransportError as error:
                time.sleep(attempts.cut(why(error), sent=was_sent(error)))
            else:
                return attempts.answered(response.status_code, response.headers, response.content)
