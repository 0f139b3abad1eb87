"""The floor of `bench sse`: what a relay costs that does nothing but receive the chunks and write as many bytes.

The same connection to NATS and the same event loop as a gateway's, one subscription for all, one write for each chunk.
It says which request a client has, as a gateway does, and looks at nothing that a client sends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final, cast
from uuid import uuid4

import uvloop

from broker.connection import Broker
from broker.subjects import seen

_HEAD: Final = b"HTTP/1.1 200 OK\r\nCornstalk-Request: %b\r\n\r\n"
_FRAME: Final = (
    b"86\r\nevent: chunk\nid: 10000\n"
    b'data: {"field":"text","node":"abcdefgh","output":"text","n":30,"data":"%b"}\n\n\r\n'
)
"""As long as what a gateway writes, with the number of the first."""

_clients: dict[str, asyncio.Transport] = {}


class _Client(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = uuid4().hex
        _clients[request] = writing = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        writing.write(_HEAD % request.encode())


def _hear(subject: str, data: bytes, _: bytes) -> None:
    _clients[subject.split(".")[2]].write(_FRAME % data[data.index(b"t=") :])


async def _serve(port: int) -> None:
    broker = await Broker.from_env("floor")
    await broker.listen(seen("chunk.>"), _hear)
    server = await asyncio.get_running_loop().create_server(_Client, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
