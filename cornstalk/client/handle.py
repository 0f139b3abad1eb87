"""Apps with their models, for type checkers and for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from cornstalk.client.events import Answer, R
from cornstalk.client.fields import Q

if TYPE_CHECKING:
    from cornstalk.client.aio import AsyncClient
    from cornstalk.client.answers import AnswerStream, AsyncAnswerStream
    from cornstalk.client.session import AsyncSession
    from cornstalk.client.sync import Client
    from cornstalk.client.sync_session import Session


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

    def session(self, **options: Any) -> AsyncSession[Q, R]:
        """As `AsyncClient.session`."""
        return self._client.session(self.name, response_model=self._response, **options)


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

    def session(self, **options: Any) -> Session[Q, R]:
        """As `Client.session`."""
        return self._client.session(self.name, response_model=self._response, **options)
