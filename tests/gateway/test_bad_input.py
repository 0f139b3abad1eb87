"""Whatever a client sends: a 4xx that says what was expected, what came and in which field, and nobody dies of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.e2e.apps import mixed
from tests.gateway.raw import Answer, exchange, post
from tests.gateway.sound import data_url, wav
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

WAV = wav()


@pytest_asyncio.fixture(autouse=True, scope="module", loop_scope="module")
async def everything_still_works(stack: Stack) -> AsyncIterator[None]:
    """After all of it the same processes are there, and right."""
    before = {name: child.pid for name, child in stack.children.items()}
    yield
    assert {name: child.pid for name, child in stack.children.items() if child.alive} == before
    good = await stack.clients[0].post("/apps/mixed", json={"text": "good", "sound": data_url(WAV)})
    assert good.status_code == 200, good.text
    assert good.json()["response"] == mixed("good", WAV)


def check(status: int, error: dict[str, Any], expected: int, code: str, field: str, *said: str) -> None:
    assert (status, error["code"], error.get("field", "")) == (expected, code, field), error
    for words in said:
        assert words in error["message"], error


async def raw(
    stack: Stack, body: bytes | str, kind: str = "application/json", path: str = "/apps/mixed", **headers: str
) -> Answer:
    data = body.encode() if isinstance(body, str) else body
    return await exchange(stack.ports[0], post(path, data, kind, **headers))


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "said"),
    [
        ("", 400, "malformed_body", "", "expected JSON"),
        ("{", 400, "malformed_body", "", "expected JSON"),
        ('{"text": "x"} {', 400, "malformed_body", "", "expected JSON"),
        ('{"text": NaN}', 400, "malformed_body", "", "expected JSON"),
        ('{"text": "x", "ratio": Infinity}', 400, "malformed_body", "", "expected JSON"),
        ('{"text": "x", "ratio": 1e999}', 400, "malformed_body", "", "out of range"),
        ('{"text": "\\ud800"}', 400, "malformed_body", "", "expected JSON"),
        ('{"\\udfff": "x"}', 400, "malformed_body", "", "expected JSON"),
        (b'{"text": "\xff"}', 400, "malformed_body", "", "UTF-8"),
        ('{"text": "x"}'.encode("utf-16"), 400, "malformed_body", "", "expected JSON"),
        ('{"text": "a\0b"}', 400, "malformed_body", "", "expected JSON"),
        ('{"text": "x", "extra": ' + "[" * 100_000 + "}", 400, "malformed_body", "", "nested deeper than 64"),
        ('{"text": "x", "extra": ' + "[" * 65 + "]" * 65 + "}", 400, "malformed_body", "", "nested deeper than 64"),
        ('{"text": "x", "extra": ' + '{"a":' * 900 + "1" + "}" * 901, 400, "malformed_body", "", "nested deeper"),
        ("[]", 422, "bad_input", "", "expected an object with text, count"),
        ('"text"', 422, "bad_input", "", "got str"),
        ("null", 422, "bad_input", "", "got NoneType"),
        ("{}", 422, "bad_input", "text", "required"),
        ('{"text": 5}', 422, "bad_input", "text", "string, got 5"),
        ('{"text": null}', 422, "bad_input", "text", "string, got None"),
        ('{"text": ["x"]}', 422, "bad_input", "text", "got a list"),
        (
            '{"text": "x", "count": "many"}',
            422,
            "bad_input",
            "count",
            "integer, unable to parse string as an integer, got 'many'",
        ),
        ('{"text": "x", "count": 1.5}', 422, "bad_input", "count", "got 1.5"),
        ('{"text": "x", "count": {}}', 422, "bad_input", "count", "got an object"),
        ('{"text": "x", "loud": "perhaps"}', 422, "bad_input", "loud", "boolean"),
        ('{"text": "x", "texxt": "y"}', 422, "bad_input", "texxt", "mixed takes text, count"),
        ('{"text": "x", "count": 1' + "0" * 30 + "}", 422, "bad_input", "count", "64 bits"),
        ('{"text": "x", "extra": [{"n": -9' + "9" * 30 + "}]}", 422, "bad_input", "extra", "64 bits"),
        ('{"text": "x", "count": 1' + "0" * 5000 + "}", 400, "malformed_body", "", "out of range"),
        ('{"text": "x", "sound": 5}', 422, "bad_input", "sound", "expected a file part or a data URL"),
        (
            '{"text": "x", "sound": {"digest": "d", "nbytes": 1, "media_type": "audio/wav"}}',
            422,
            "bad_input",
            "sound",
            "got dict",
        ),
        ('{"text": "x", "sound": "/etc/passwd"}', 422, "bad_input", "sound", "got '/etc/passwd'"),
        ('{"text": "x", "sound": "file:///etc/passwd"}', 422, "bad_input", "sound", "data URL"),
        ('{"text": "x", "sound": "http://127.0.0.1/a.wav"}', 422, "bad_input", "sound", "data URL"),
        ('{"text": "x", "sound": "data:audio/wav,abc"}', 422, "bad_input", "sound", "expected a data URL in base64"),
        ('{"text": "x", "sound": "data:audio/wav;base64"}', 422, "bad_input", "sound", "expected a data URL in base64"),
        ('{"text": "x", "sound": "data:audio/wav;base64,!!!"}', 422, "bad_input", "sound", "expected base64"),
        ('{"text": "x", "sound": "data:audio/wav;base64,QUJD\u00e9"}', 422, "bad_input", "sound", "expected base64"),
        ('{"text": "x", "sound": "data:audio/wav;base64,QQ"}', 422, "bad_input", "sound", "expected base64"),
        ('{"text": "x", "sound": "data:audio/wav;base64,"}', 422, "bad_input", "sound", "(0 bytes)"),
        ('{"text": "x", "files": "one"}', 422, "bad_input", "files", "expected a list of uploads, got str"),
        ('{"text": "x", "files": [5]}', 422, "bad_input", "files.0", "data URL"),
        ('{"text": "x", "files": ["data:;base64,QQ==", ""]}', 422, "bad_input", "files.1", "data URL"),
        (
            json.dumps({"text": "x", "sound": data_url(b"I am text\n")}),
            415,
            "unsupported_media",
            "sound",
            "expected audio (by its content), got text/plain",
        ),
        (
            json.dumps({"text": "x", "sound": data_url(b"\x89PNG\r\n\x1a\n" + bytes(9))}),
            415,
            "unsupported_media",
            "sound",
            "got image/png",
        ),
        (json.dumps({"text": "x" * 9_000_000}), 413, "too_large", "", "at most"),
    ],
)
async def test_json(stack: Stack, body: bytes | str, status: int, code: str, field: str, said: str) -> None:
    answer = await raw(stack, body)
    check(answer.status, answer.error, status, code, field, said)


@pytest.mark.parametrize(
    ("header", "value", "field"),
    [
        ("Cornstalk_Deadline", "NaN", "Cornstalk-Deadline"),
        ("Cornstalk_Deadline", "-3", "Cornstalk-Deadline"),
        ("Cornstalk_Deadline", "0", "Cornstalk-Deadline"),
        ("Cornstalk_Deadline", "1e400", "Cornstalk-Deadline"),
        ("Cornstalk_Deadline", "yesterday", "Cornstalk-Deadline"),
        ("Cornstalk_Resume_Grace", "inf", "Cornstalk-Resume-Grace"),
        ("Cornstalk_Seed", "1" * 5000, "Cornstalk-Seed"),
        ("Cornstalk_Seed", "\xb2", "Cornstalk-Seed"),
        ("Cornstalk_Tenant", "a.>", "Cornstalk-Tenant"),
        ("Cornstalk_Tenant", "\xe9", "Cornstalk-Tenant"),
        ("Cornstalk_Durable", "maybe", "Cornstalk-Durable"),
        ("Idempotency_Key", "", "Idempotency-Key"),
        ("Idempotency_Key", "k" * 256, "Idempotency-Key"),
    ],
)
async def test_headers(stack: Stack, header: str, value: str, field: str) -> None:
    answer = await raw(stack, '{"text": "x"}', **{header: value})
    check(answer.status, answer.error, 422, "bad_input", field)


@pytest.mark.parametrize(
    "trace", ["x\x0bNats-Msg-Id: stolen", "\xe9" * 50, "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "z" * 60_000]
)
async def test_a_trace_context_that_is_none_is_replaced(stack: Stack, trace: str) -> None:
    answer = await raw(stack, '{"text": "traced"}', traceparent=trace)
    assert answer.status in (200, 400, 431), answer
    if answer.status == 200:
        assert json.loads(answer.body)["response"] == mixed("traced")


async def test_a_header_cannot_be_smuggled_into_an_answer(stack: Stack) -> None:
    answer = await raw(stack, '{"text": "x"}', Idempotency_Key="k%0d%0aX-Evil: 1", Cornstalk_Tenant="t")
    assert answer.status == 200
    assert "x-evil" not in answer.headers
    head = b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nIdempotency-Key: a\rb\r\nContent-Length: 2\r\n\r\n{}"
    assert 400 <= (await exchange(stack.ports[0], head)).status < 500


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/apps/nobody", 404, "unknown_app"),
        ("/apps/..", 404, "unknown_app"),
        ("/apps/mixed.", 404, "unknown_app"),
        ("/apps/mixed..x", 404, "unknown_app"),
        ("/apps/*", 404, "unknown_app"),
        ("/apps/%3E", 404, "unknown_app"),
        ("/apps/%00", 404, "unknown_app"),
        ("/apps/%ff%fe", 404, "unknown_app"),
        ("/apps/mixed%0d%0aX:%20y", 404, "unknown_app"),
        ("/apps/" + "a" * 5000, 404, "unknown_app"),
        ("/apps/mixed%20", 404, "unknown_app"),
        ("/apps/mixed/", 404, "not_found"),
        ("/apps//mixed", 404, "not_found"),
        ("/apps/mixed%2f..%2fmixed", 404, "not_found"),
        ("/../etc/passwd", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/healthz", 405, "method_not_allowed"),
    ],
)
async def test_paths(stack: Stack, path: str, status: int, code: str) -> None:
    answer = await raw(stack, '{"text": "x"}', path=path)
    field = "app" if code == "unknown_app" else ""
    check(answer.status, answer.error, status, code, field)


async def test_an_older_version_is_no_app_of_its_own(stack: Stack) -> None:
    app = (await stack.clients[0].get("/apps")).json()["apps"][0]
    for method in ("POST", "DELETE"):
        answer = await stack.clients[0].request(
            method,
            f"/apps/mixed.{app['version']}",
            json={"text": "x"},
            headers={"Authorization": f"Bearer {stack.admin}"},
        )
        check(answer.status_code, answer.json()["error"], 404, "unknown_app", "app")


@pytest.mark.parametrize("name", ["nonsense", "0" * 31, "0" * 33, "Z" * 32, "%2e%2e", "*", "%3e", "\xb2" * 32, "%00"])
async def test_request_names(stack: Stack, name: str) -> None:
    for method, rest in (("GET", ""), ("GET", "/events"), ("DELETE", "")):
        head = f"{method} /requests/{name}{rest} HTTP/1.1\r\nHost: h\r\n\r\n".encode("latin-1")
        answer = await exchange(stack.ports[0], head)
        if answer.status != 400 or answer.body.startswith(b"{"):
            check(answer.status, answer.error, 422, "bad_input", "request", "32 hex digits")


@pytest.mark.parametrize("given", ["-1", "x", "1.5", "", "9" * 19, "\xb2", "1 2", "0x10"])
async def test_last_event_id(stack: Stack, given: str) -> None:
    request = (await stack.clients[0].post("/apps/mixed", json={"text": "events"})).json()["request"]
    head = f"GET /requests/{request}/events HTTP/1.1\r\nHost: h\r\nLast-Event-ID: {given}\r\n\r\n".encode("latin-1")
    answer = await exchange(stack.ports[0], head)
    check(answer.status, answer.error, 422, "bad_input", "Last-Event-ID", "expected the id of a chunk")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/msgpack", 415),
        ("", 415),
        ("\xe9", 415),
    ],
)
async def test_content_types(stack: Stack, kind: str, status: int) -> None:
    answer = await raw(stack, '{"text": "x"}', kind=kind)
    check(answer.status, answer.error, status, "unsupported_media", "Content-Type", "application/json")


# ------------------------------------------------------------ multipart

FORM = "multipart/form-data; boundary=b"


def part(name: str, content: bytes, filename: str = "", kind: str = "") -> bytes:
    more = f'; filename="{filename}"' if filename else ""
    more += f"\r\nContent-Type: {kind}" if kind else ""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"


END = b"--b--\r\n"
TEXT = part("text", b"x")


@pytest.mark.parametrize(
    ("body", "status", "code", "field", "said"),
    [
        (b"", 400, "malformed_body", "", "last boundary"),
        (b"nonsense", 400, "malformed_body", "", "broken"),
        (TEXT, 400, "malformed_body", "", "last boundary"),
        (TEXT + part("sound", WAV, "a.wav"), 400, "malformed_body", "", "last boundary"),
        (TEXT + part("sound", WAV, "a.wav")[:-20], 400, "malformed_body", "", "last boundary"),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END, 400, "malformed_body", "", "a name"),
        (b"--b\r\nno header\r\n\r\nx\r\n" + END, 400, "malformed_body", "", "broken"),
        (b"--b\r\nContent-Disposition: " + b"x" * 9000 + b"\r\n\r\nx\r\n" + END, 400, "malformed_body", "", "broken"),
        (TEXT + b"".join(part(f"f{i}", b"") for i in range(200)) + END, 400, "malformed_body", "", "at most 128 parts"),
        (END, 422, "bad_input", "text", "required"),
        (part("text", b"\xff\xfe") + END, 400, "malformed_body", "", "text: expected UTF-8"),
        (TEXT + TEXT + END, 422, "bad_input", "text", "expected one part of this name, got 2"),
        (TEXT + part("sound", WAV, "a.wav") + part("sound", WAV, "b.wav") + END, 422, "bad_input", "sound", "got 2"),
        (TEXT + part("other", b"y") + END, 422, "bad_input", "other", "mixed takes"),
        (part("text", b"x", "a.txt") + END, 422, "bad_input", "text", "expected text, got a file"),
        (TEXT + part("count", b"many") + END, 422, "bad_input", "count", "integer"),
        (
            TEXT + part("extra", b"[" * 70 + b"]" * 70) + part("count", b"[[[") + END,
            422,
            "bad_input",
            "count",
            "integer",
        ),
        (TEXT + part("extra", b"[1", kind="application/json") + END, 400, "malformed_body", "", "extra: expected JSON"),
        (part("text", b"5", kind="application/json") + END, 422, "bad_input", "text", "string"),
        (TEXT + part("sound", b"[]", kind="application/json") + END, 422, "bad_input", "sound", "got list"),
        (TEXT + part("files", b"{}", kind="application/json") + END, 422, "bad_input", "files.0", "got dict"),
        (TEXT + part("sound", b"not a url") + END, 422, "bad_input", "sound", "file part or a data URL"),
        (TEXT + part("sound", b"", "a.wav") + END, 422, "bad_input", "sound", "(0 bytes)"),
        (
            TEXT + part("sound", b"I am a text file\n", "a.wav") + END,
            415,
            "unsupported_media",
            "sound",
            "got text/plain",
        ),
        (TEXT + part("sound", bytes(99), "../../a.wav") + END, 415, "unsupported_media", "sound", "octet-stream"),
        (TEXT + part("files", b"ok", "a") + part("files", b"", "b") + END, 422, "bad_input", "files.1", "(0 bytes)"),
        (part("text", b"x" * 9_000_000) + END, 413, "too_large", "text", "expected at most"),
    ],
)
async def test_multipart(stack: Stack, body: bytes, status: int, code: str, field: str, said: str) -> None:
    answer = await raw(stack, body, kind=FORM)
    check(answer.status, answer.error, status, code, field, said)


@pytest.mark.parametrize(
    ("kind", "status", "field"),
    [
        ("multipart/form-data", 400, ""),
        ("multipart/form-data; boundary=", 400, ""),
        ("multipart/form-data; boundary=" + "b" * 5000, 400, ""),
        ("multipart/form-data; boundary=\xe9", 400, ""),
        (FORM + "; charset=unicode_escape", 415, "Content-Type"),
        (FORM + "; charset=idna", 415, "Content-Type"),
    ],
)
async def test_multipart_declarations(stack: Stack, kind: str, status: int, field: str) -> None:
    answer = await raw(stack, TEXT + END, kind=kind)
    assert (answer.status, answer.error.get("field", "")) == (status, field), answer


# ------------------------------------------------------------ size and time


async def test_a_body_that_is_declared_too_large_is_refused_before_it_comes(stack: Stack) -> None:
    head = b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for size in (97 << 20, 10**19):
        answer = await exchange(stack.ports[0], head % size)
        check(answer.status, answer.error, 413, "too_large", "", "at most", str(size)[:20])


async def test_a_body_that_turns_out_too_large_is_cut_off(stack: Stack) -> None:
    async def endless() -> AsyncIterator[bytes]:
        piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        for _ in range(200):
            yield piece

    for kind in ("application/json", "text/x-python"):
        path = "/apps/mixed" if kind == "application/json" else "/apps"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n"
            f"Authorization: Bearer {stack.admin}\r\n\r\n"
        )
        answer = await exchange(stack.ports[0], head.encode(), endless())
        check(answer.status, answer.error, 413, "too_large", "", "at most")


async def test_a_file_over_its_limit_is_named(stack: Stack) -> None:
    async def file() -> AsyncIterator[bytes]:
        def chunk(data: bytes) -> bytes:
            return b"%x\r\n" % len(data) + data + b"\r\n"

        yield chunk(TEXT + part("sound", WAV, "a.wav")[:-2])
        for _ in range(80):
            yield chunk(bytes(1 << 20))

    head = f"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nContent-Type: {FORM}\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await exchange(stack.ports[0], head.encode(), file())
    check(answer.status, answer.error, 413, "too_large", "sound", "at most 67108864 bytes")


async def test_a_client_that_hangs_up_in_the_middle_harms_nobody(stack: Stack) -> None:
    for _ in range(5):
        _, writer = await asyncio.open_connection("127.0.0.1", stack.ports[0])
        writer.write(post("/apps/mixed", b'{"text": "cut off"}')[:-5])
        await writer.drain()
        writer.transport.abort()
    assert (await stack.clients[0].get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n",
        b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /apps/mixed HTTP/1.1\r\nHost: h\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00" + bytes(200) + b"\r\n\r\n",
    ],
)
async def test_what_is_no_http(stack: Stack, head: bytes) -> None:
    try:
        answer = await exchange(stack.ports[0], head)
    except (asyncio.IncompleteReadError, ConnectionError):
        return  # hung up: as good
    assert 400 <= answer.status < 500


async def test_a_deadline_that_passes_at_the_door_is_no_failure_of_the_gateway(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/mixed", json={"text": "x"}, headers={"Cornstalk-Deadline": "1e-9"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "expired")


async def test_many_bad_ones_beside_good_ones(stack: Stack) -> None:
    client: httpx.AsyncClient = stack.clients[0]
    good = [client.post("/apps/mixed", json={"text": f"g{i}", "service_ms": 50}) for i in range(8)]
    bad = [raw(stack, b'{"text": "\xff"}') for _ in range(40)]
    answers, refusals = await asyncio.gather(asyncio.gather(*good), asyncio.gather(*bad))
    assert [a.json()["response"] for a in answers] == [mixed(f"g{i}") for i in range(8)]
    assert {r.status for r in refusals} == {400}
