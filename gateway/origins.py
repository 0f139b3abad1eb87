"""Which web pages may use this gateway: those that it serves itself, and those of the origins that its operator names.

A browser sends requests for whatever page its user visits. CORS keeps the answers from other pages; it neither stops
what such a page starts with a plain form, nor covers WebSockets. So what changes something is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from cornstalk.errors import CornstalkError
from gateway.errors import error_response

ANY: Final = "*"
"""Pages of every origin, and those that have none, such as files."""
_ORIGIN: Final = re.compile(r"https?://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:\d{1,5})?")
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
_ASKED: Final = (
    "Content-Range",
    "Content-Type",
    "Cornstalk-Deadline",
    "Cornstalk-Durable",
    "Cornstalk-Lane",
    "Cornstalk-Resume-Grace",
    "Cornstalk-Seed",
    "Cornstalk-Tenant",
    "Idempotency-Key",
    "Last-Event-ID",
    "traceparent",
)
"""Headers that such a page may send. Not among them: Authorization, for the admin token is nothing for a page."""
_TOLD: Final = ("Cornstalk-Request", "Retry-After", "Upload-Complete", "Upload-Offset")
"""Headers that such a page may read, beside those that any may."""
_PREFLIGHT_KEPT: Final = 600
"""Seconds for which a browser need not ask again."""


class ForeignPage(CornstalkError):
    """Raised when a page of another origin asks for what it may not."""

    code = "foreign_page"
    status = 403

    def __init__(self) -> None:
        super().__init__(
            "this page is of another origin than the gateway: name its origin with --allow-origin, "
            "or have the proxy between them pass the Host header on"
        )


class Origins:
    """The pages that may use this gateway. Without a name: only those that come from the same host and port."""

    def __init__(self, *allowed: str) -> None:
        """`allowed`: origins as browsers say them ("https://app.example:8443"), or ANY. Raises ValueError."""
        for origin in allowed:
            if origin != ANY and not _ORIGIN.fullmatch(origin):
                raise ValueError(f"expected an origin such as https://app.example:8443, or {ANY}, got {origin!r}")
        self.allowed = frozenset(allowed)

    def admit(self, headers: Mapping[str, str]) -> bool:
        """Whether who sends this is no page of another origin, or one that may. `headers` by lower-case name.

        What a browser says of itself (Sec-Fetch-Site) holds behind a proxy that changes Host as well; a page cannot
        set it. Who sends neither that nor Origin is no browser.
        """
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self.allowed or origin in self.allowed:
            return True
        if site is not None:
            return site in ("same-origin", "none")
        return origin is None or urlsplit(origin).netloc == headers.get("host")

    def over(self, app: ASGIApp) -> ASGIApp:
        """`app`, with the headers by which browsers let pages of the allowed origins read what it answers."""
        guarded = _Guarded(app, self)
        if not self.allowed:
            return guarded
        return CORSMiddleware(
            guarded,
            allow_origins=self.allowed,
            allow_methods=_METHODS,
            allow_headers=_ASKED,
            expose_headers=_TOLD,
            max_age=_PREFLIGHT_KEPT,
            allow_credentials=False,  # a gateway knows no cookies: with them, a page could only do more harm
        )


class _Guarded:
    """ASGI middleware: 403 for what changes something and comes from a foreign page. WebSockets look by themselves."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] == "http"
            and scope["method"] not in _READING
            and not self._origins.admit(Headers(scope=scope))
        ):
            await error_response(ForeignPage())(scope, receive, send)
            return
        await self._app(scope, receive, send)
