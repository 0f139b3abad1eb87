"""Web pages: its own and those of allowed origins use all of a gateway; others start nothing and read nothing."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from broker.facts import Facts
from cornstalk.uploads import LIMIT
from gateway.origins import Origins
from tests.e2e.apps import APPS, one
from tests.gateway.sse import frames
from tests.gateway.ws import connected
from tests.stack import ROOT, Stack, free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")

PAGE = "https://page.example:8443"
EVIL = "https://evil.example"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
"""What a page may send anywhere without being asked."""
BODY = b'--b\r\nContent-Disposition: form-data; name="text"\r\n\r\nhello\r\n--b--\r\n'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    """The second gateway is open to every page."""
    async with Stack(env={"CORNSTALK_ALLOW_ORIGINS": f"https://other.example {PAGE}"}) as running:
        await running.deploy(APPS / "one.py")
        port = free_port()
        running.add("gateway1", "gateway", "--port", str(port), "--allow-origin", "*")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            running.ports.append(port)
            running.clients.append(client)
            await running.wait_ready(1)
            yield running


async def accepted(stack: Stack) -> int:
    return len([fact async for fact in Facts(stack.broker).accepted()])


def origins_read(response: httpx.Response) -> str | None:
    assert "access-control-allow-credentials" not in response.headers
    return response.headers.get("access-control-allow-origin")


@pytest.mark.parametrize(
    ("allowed", "headers", "admitted"),
    [
        ((), {}, True),
        ((), {"host": "g:1", "origin": "http://g:1"}, True),
        ((), {"host": "g:1", "origin": "http://g:2"}, False),
        ((), {"host": "g:1", "origin": "null"}, False),
        ((), {"host": "g:1", "origin": PAGE, "sec-fetch-site": "same-origin"}, True),  # a proxy changed Host
        ((), {"host": "g:1", "sec-fetch-site": "none"}, True),  # typed by the user
        ((), {"host": "g:1", "origin": "http://g:1", "sec-fetch-site": "cross-site"}, False),
        ((), {"host": "g:1", "origin": PAGE, "sec-fetch-site": "same-site"}, False),
        ((PAGE,), {"host": "g:1", "origin": PAGE, "sec-fetch-site": "cross-site"}, True),
        ((PAGE,), {"host": "g:1", "origin": PAGE + "1"}, False),
        ((PAGE,), {"host": "g:1", "origin": "http://page.example:8443"}, False),
        ((PAGE,), {"host": "g:1", "origin": "null"}, False),
        (("*",), {"host": "g:1", "origin": "null"}, True),
    ],
)
async def test_who_is_admitted(allowed: tuple[str, ...], headers: dict[str, str], admitted: bool) -> None:
    assert Origins(*allowed).admit(headers) == admitted


@pytest.mark.parametrize("origin", ["page.example", "https://page.example/", "https://*.example", "null", "HTTPS://A"])
async def test_what_is_no_origin_stops_the_start(stack: Stack, origin: str) -> None:
    argv = ["-m", "gateway", "--admin-token-file", str(stack.home / "admin.token"), "--allow-origin", origin]
    started = await asyncio.create_subprocess_exec(sys.executable, *argv, stderr=PIPE, cwd=ROOT)
    _, said = await asyncio.wait_for(started.communicate(), 20)
    assert started.returncode == 2
    assert f"got {origin!r}" in said.decode()


async def test_a_browser_asks_first(stack: Stack) -> None:
    def asks(origin: str, headers: str = "content-type,idempotency-key,cornstalk-deadline") -> dict[str, str]:
        return {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": headers,
        }

    told = await stack.clients[0].options("/apps/one", headers=asks(PAGE))
    assert (told.status_code, origins_read(told)) == (200, PAGE)
    assert "DELETE" in told.headers["access-control-allow-methods"]
    assert "Origin" in told.headers["vary"]
    for path, method in (("/uploads/x", "PUT"), ("/requests/x", "DELETE"), ("/requests/x/events", "GET")):
        head = asks(PAGE, "content-range,last-event-id") | {"Access-Control-Request-Method": method}
        assert (await stack.clients[0].options(path, headers=head)).status_code == 200
    foreign = await stack.clients[0].options("/apps/one", headers=asks(EVIL))
    assert (foreign.status_code, origins_read(foreign)) == (400, None)
    with_token = await stack.clients[0].options("/apps", headers=asks(PAGE, "authorization"))
    assert with_token.status_code == 400
    assert origins_read(await stack.clients[1].options("/apps/one", headers=asks(EVIL))) == "*"


async def test_an_allowed_page_reads_answers_errors_and_headers(stack: Stack) -> None:
    client, page = stack.clients[0], {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"}
    answer = await client.post("/apps/one", json={"text": "page"}, headers=page)
    assert (answer.json()["response"], origins_read(answer)) == (one("page"), PAGE)
    exposed = answer.headers["access-control-expose-headers"]
    assert {"Cornstalk-Request", "Retry-After", "Upload-Offset"} <= set(exposed.split(", "))
    refused = [
        await client.post("/apps/nobody", json={}, headers=page),
        await client.post("/apps/one", json={"text": 1}, headers=page),
        await client.post("/uploads", content=bytes(LIMIT + 1), headers=page),
        await client.get("/nowhere", headers=page),
    ]
    assert [r.status_code for r in refused] == [404, 422, 413, 404]
    assert {origins_read(r) for r in refused} == {PAGE}
    anyone = await stack.clients[1].post("/apps/one", json={"text": "any"}, headers={"Origin": EVIL})
    assert (anyone.json()["response"], origins_read(anyone)) == (one("any"), "*")


async def test_a_stream_still_streams(stack: Stack) -> None:
    """The first piece is read long before the last one is made."""
    headers = {"Origin": PAGE, "Accept": "text/event-stream", "Cornstalk-Resume-Grace": "0"}
    body = {"text": "stream", "pieces": 200, "service_ms": 200}
    async with stack.clients[0].stream("POST", "/apps/one", json=body, headers=headers) as response:
        assert origins_read(response) == PAGE
        text = ""
        async for piece in response.aiter_text():
            text += piece
            if "event: chunk" in text:
                break
        request = response.headers["Cornstalk-Request"]
        assert (await stack.clients[0].get(f"/requests/{request}")).json()["status"] == "running"
    whole = await stack.clients[0].post("/apps/one", json={"text": "whole", "pieces": 4}, headers=headers)
    assert frames(whole.text)[-1]["event"] == "end"


async def test_a_foreign_page_starts_nothing_and_reads_nothing(stack: Stack) -> None:
    client, before = stack.clients[0], await accepted(stack)
    for headers in ({"Origin": EVIL}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        refused = await client.post("/apps/one", content=BODY, headers=FORM | headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "foreign_page")
        assert origins_read(refused) is None
        assert (await client.post("/uploads", content=b"x", headers=headers)).status_code == 403
        assert (await client.delete(f"/requests/{'0' * 32}", headers=headers)).status_code == 403
    assert await accepted(stack) == before
    assert origins_read(await client.get("/apps", headers={"Origin": EVIL})) is None
    own = {"Origin": f"http://127.0.0.1:{stack.ports[0]}"}
    assert (await client.post("/apps/one", content=BODY, headers=FORM | own)).status_code == 200
    assert await accepted(stack) == before + 1


async def test_websockets_follow_the_same_rule(stack: Stack) -> None:
    first, second = stack.ports
    for port, origin in ((first, PAGE), (first, f"http://127.0.0.1:{first}"), (second, EVIL), (second, "null")):
        async with connected(port, "one", origin=origin) as client:
            await client.send("ping")
            assert (await client.receive())["type"] == "pong"
    for origin in (EVIL, "null", PAGE.replace("https", "http")):
        async with connected(first, "one", origin=origin) as client:
            assert (await client.closed())[0] == 4403
