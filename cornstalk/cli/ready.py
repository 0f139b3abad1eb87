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


async def await_ready(urls: Sequence[str], sidecar: Path) -> None:
    """Returns when all are ready. Waits for ever: the caller has the deadline."""
    await asyncio.gather(_until_listening(sidecar), *(_until_ready(url) for url in urls))


async def _until_listening(path: Path) -> None:
    while True:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(path))  # never waits: it is taken into the backlog, or refused
            return
        await asyncio.sleep(POLL_EVERY)


async def _until_ready(url: str) -> None:
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            if await asyncio.wait_for(_status(url, "/readyz"), ANSWER_WITHIN) == 200:
                return
        await asyncio.sleep(POLL_EVERY)


async def _status(url: str, path: str) -> int:
    """HTTP status of a GET; 0 when the answer is none of HTTP."""
    address = urlparse(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n".encode())
        version, _, rest = (await reader.readline()).partition(b" ")
        code = rest[:3]
        return int(code) if version.startswith(b"HTTP/") and code.isdigit() else 0
    finally:
        writer.close()
