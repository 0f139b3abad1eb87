"""Is the tree ready: every gateway says so, and the sidecar takes connections. Model loading is not part of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

POLL_EVERY: Final = 0.05
ANSWER_WITHIN: Final = 2.0


class Readiness:
    """What is not ready yet, by name, each with the reason that it gave last."""

    def __init__(self, urls: Sequence[str], sidecar: Path) -> None:
        self.missing = {"sidecar": "not listening"} | {f"gateway {url}": "not listening" for url in urls}
        self._urls, self._sidecar = urls, sidecar

    async def wait(self) -> None:
        """Returns when all are ready. Waits for ever: the caller has the deadline."""
        await asyncio.gather(self._until_listening(), *(self._until_ready(url) for url in self._urls))

    async def _until_listening(self) -> None:
        while True:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                sock.connect(str(self._sidecar))  # never waits: it is taken into the backlog, or refused
                del self.missing["sidecar"]
                return
            await asyncio.sleep(POLL_EVERY)

    async def _until_ready(self, url: str) -> None:
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                status, body = await asyncio.wait_for(_get(url, "/readyz"), ANSWER_WITHIN)
                if status == 200:
                    del self.missing[f"gateway {url}"]
                    return
                self.missing[f"gateway {url}"] = body
            await asyncio.sleep(POLL_EVERY)


async def _get(url: str, path: str) -> tuple[int, str]:
    """Status and body; status 0 when the answer is none of HTTP."""
    address = urlparse(url)
    reader, writer = await asyncio.open_connection(
        address.hostname,
        address.port,
    )
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode(errors="replace").partition("\r\n\r\n")
        version, _, rest = head.partition(" ")
        return (int(rest[:3]) if version.startswith("HTTP/") and rest[:3].isdigit() else 0), body[:200]
    finally:
        writer.close()
