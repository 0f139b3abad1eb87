"""Apps with their models, for type checkers and for readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic

from pydantic import BaseModel
from typing_extensions import TypeVar

from cornstalk.client.events import Answer, R

if TYPE_CHECKING:
    from cornstalk.client.aio import AsyncClient
    from cornstalk.client.answers import AnswerStream, AsyncAnswerStream
    from cornstalk.client.sync import Client

Q = TypeVar("Q", bound=BaseModel | Mapping[str, Any], default=dict[str, Any])
"""Request of an app: its model, or a dict when none was named."""


class AsyncAppHandle(Generic[Q, R]):
    """One app of an AsyncClient. `more`: further fields, such as files, and the options of `AsyncClient.stream`."""

    def __init__(self, client: AsyncClient, name: str, response: type[R] | None) -> None:
        self._client, self.name, self._response = client, name, response

    async def invoke(self, request: Q | None = None, **more: Any) -> Answer[R]:
        """As `AsyncClient.invoke`."""
        return await self._client.invoke(self.name, request, response_model=self._response, **more)

    def stream(self, request: Q | None = None, **more: Any) -> AsyncAnswerStream[R]:
        """As `AsyncClient.stream`."""
        return self._client.stream(self.name, request, response_model=self._response, **more)


class AppHandle(Generic[Q, R]):
    """One app of a Client. `more`: further fields, such as files, and the options of `Client.stream`."""

    def __init__(self, client: Client, name: str, response: type[R] | None) -> None:
        self._client, self.name, self._response = client, name, response

    def invoke(self, request: Q | None = None, **more: Any) -> Answer[R]:
        """As `Client.invoke`."""
        return self._client.invoke(self.name, request, response_model=self._response, **more)

    def stream(self, request: Q | None = None, **more: Any) -> AnswerStream[R]:
        """As `Client.stream`."""
        return self._client.stream(self.name, request, response_model=self._response, **more)
