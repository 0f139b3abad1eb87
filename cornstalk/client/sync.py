"""The client for threads: `aio.py` without asyncio. What is said there holds here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Generic, Self

import httpx

from cornstalk.client import calls
from cornstalk.client.ask import DEADLINE, GRACE, Ask
from cornstalk.client.base import BaseClient, was_sent, why
from cornstalk.client.conversation import Conversation
from cornstalk.client.events import Answer, Chunk, End, R
from cornstalk.client.fields import Request
from cornstalk.client.handle import AppHandle, Q
from cornstalk.errors import CornstalkError

log = logging.getLogger(__name__)


class AnswerStream(Generic[R]):
    """As AsyncAnswerStream. One thread reads it."""

    def __init__(self, client: Client, ask: Ask, model: type[R] | None) -> None:
        self._client, self._ask, self._model = client, ask, model
        self._events = self._run()
        self._answer: Answer[R] | None = None
        self.request = ""
        """The id of the request, once a gateway has accepted it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk | End[R]:
        return next(self._events)

    def text(self, field: str) -> Iterator[str]:
        """The pieces of a text field. Those of other fields are part of the answer."""
        for piece in self.pieces(field):
            yield str(piece)

    def pieces(self, field: str) -> Iterator[Any]:
        """The pieces of a field: str, bytes or list."""
        for event in self:
            if isinstance(event, Chunk) and event.field == field:
                yield event.data

    def answer(self) -> Answer[R]:
        """Reads on to the end."""
        for _ in self:
            pass
        if self._answer is None:
            raise CornstalkError("this stream was closed, or failed, before its end")
        return self._answer

    def close(self) -> None:
        """Leaves. Cancels the request if it has not ended."""
        self._events.close()

    def _run(self) -> Generator[Chunk | End[R], None, None]:
        client = self._client
        talk = Conversation(self._ask, self._ask.body(), client.urls, self._model, client.reach_within)
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
                                for event in talk.feed(data):
                                    if isinstance(event, End):
                                        self._answer = event.answer
                                    yield event
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
        ask = self._ask(
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
        return AnswerStream(self, ask, response_model)

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
