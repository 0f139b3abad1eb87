"""What both clients are made of, whatever moves their bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import httpx

from cornstalk.client.ask import DEADLINE, GRACE, Ask, new_key
from cornstalk.client.fields import Request, merged
from cornstalk.client.urls import Urls

CONNECT_WITHIN: Final = 5.0
"""Seconds to open a connection."""
SILENT_FOR: Final = 45.0
"""Seconds without a byte after which a connection counts as cut; a gateway pings each 15 s."""
REACH_WITHIN: Final = 5.0
"""Seconds for which gateways that cannot be reached are tried, before that is an error."""

H = TypeVar("H", httpx.AsyncClient, httpx.Client)


class BaseClient(ABC, Generic[H]):
    """Asks apps behind one or several gateways; which of them serves a request makes no difference.

    `url`: "http://HOST:PORT", or several. `timeout`: seconds of silence after which a connection counts as cut (a
    gateway pings each 15 s). `reach_within`: seconds for which gateways that cannot be reached are tried before
    Unreachable is raised. As many streams as are opened run at once. Raises BadInput for what is no URL.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        tenant: str | None = None,
        admin_token: str | None = None,
        timeout: float = SILENT_FOR,
        reach_within: float = REACH_WITHIN,
    ) -> None:
        self.urls, self.reach_within, self.silent_for = Urls(url), reach_within, timeout
        self._tenant, self._admin_token = tenant, admin_token
        self.http: H = self._open(
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_WITHIN)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,  # neither proxies nor the credentials of ~/.netrc are for a gateway
        )

    @abstractmethod
    def _open(self, **settings: Any) -> H: ...

    def ask(
        self,
        app: str,
        request: Request | None,
        fields: Mapping[str, Any],
        *,
        deadline: float = DEADLINE,
        seed: int | None = None,
        idempotency_key: str | None = None,
        durable: bool = False,
        resume_grace: float = GRACE,
        retry_refused: bool = False,
    ) -> Ask:
        """One request of this client. Arguments: see AsyncClient.stream."""
        return Ask(
            app=app,
            fields=merged(request, fields),
            key=idempotency_key or new_key(),
            deadline=deadline,
            seed=seed,
            durable=durable,
            resume_grace=resume_grace,
            tenant=self._tenant,
            retry_refused=retry_refused,
        )


def was_sent(error: httpx.TransportError) -> bool:
    """Whether the gateway may have got the request."""
    return not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))


def why(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
