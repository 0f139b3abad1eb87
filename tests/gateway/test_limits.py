"""Bodies that are too large or stop coming, over a real server with small limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from cornstalk.errors import CornstalkError
from gateway.errors import error_response
from gateway.limits import BodyLimit
from tests.gateway.raw import exchange
from tests.stack import free_port
from tests.waiting import eventually

LIMIT = 1000
SILENCE = 0.3


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the size of the body."""
    try:
        size = len(await Request(scope, receive).body())
    except CornstalkError as error:
        await error_response(error)(scope, receive, send)
        return
    assert (await receive())["type"] == "http.disconnect" if scope["path"] == "/wait" else True
    await PlainTextResponse(str(size))(scope, receive, send)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    port = free_port()
    app = BodyLimit(echo, LIMIT, SILENCE)
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="error"))
    running = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    yield port
    server.should_exit = True
    await running


def head(size: int | None, path: str = "/") -> bytes:
    length = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{length}\r\n\r\n".encode()


@pytest.mark.parametrize("size", [0, 1, LIMIT])
async def test_up_to_the_limit(port: int, size: int) -> None:
    answer = await exchange(port, head(size), [b"x" * size])
    assert (answer.status, answer.body) == (200, str(size).encode())


async def test_over_the_limit(port: int) -> None:
    pieces = [b"190\r\n" + b"x" * 400 + b"\r\n"] * 3 + [b"0\r\n\r\n"]
    for answer in (await exchange(port, head(LIMIT + 1)), await exchange(port, head(None), pieces)):
        assert (answer.status, answer.error["code"]) == (413, "too_large")
        assert "at most 1000 bytes" in answer.error["message"]


@pytest.mark.parametrize(("start", "body"), [(head(10), [b"12345"]), (head(10), []), (head(None), [b"5\r\n12345\r\n"])])
async def test_a_body_that_stops(port: int, start: bytes, body: list[bytes]) -> None:
    answer = await exchange(port, start, body)
    assert (answer.status, answer.error["code"]) == (408, "slow_body")


async def test_a_client_that_waits_for_its_answer_may_be_silent(port: int) -> None:
    """The limit is on the body: a request whose body has come may take as long as it takes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(5, "/wait") + b"12345")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 4 * SILENCE)
    writer.close()
