"""GET /openapi.json says what a gateway takes and answers: valid, exact per app, and what nobody can make it break."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks as conformance

from cornstalk.app import App, load_app
from gateway import autoscale, deadletters, http, openapi, resumable, retries
from tests.e2e.apps import APPS
from tests.gateway.raw import exchange, post
from tests.gateway.sound import data_url, wav
from tests.gateway.sse import frames
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ("described", "mixed", "one", "returned")
EXAMPLES = {"invoke": 30, "other": 8}
"""Requests for each operation that runs an app, and for each other one."""
FUZZED = ("/apps/{name}", "/apps/described", "/apps/returned")
ENOUGH = 20.0
"""Seconds of a deadline within which a null app answers for sure."""


@pytest_asyncio.fixture(autouse=True, scope="module", loop_scope="module")
async def apps(stack: Stack) -> AsyncIterator[None]:
    """More apps, beside `mixed`; afterwards the same processes are there."""
    for name in NAMES:
        await stack.deploy(APPS / f"{name}.py")
    before = {name: child.pid for name, child in stack.children.items()}
    yield
    assert {name: child.pid for name, child in stack.children.items() if child.alive} == before


async def fetched(stack: Stack) -> dict[str, Any]:
    body: dict[str, Any] = (await stack.clients[0].get("/openapi.json")).json()
    return body


def loaded(name: str) -> App:
    return load_app((APPS / f"{name}.py").read_text())


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for member in node:
            yield from refs(member)


def validator(spec: dict[str, Any], schema: dict[str, Any]) -> Any:
    return jsonschema_rs.Draft202012Validator({**schema, "components": spec["components"]})


def operations(spec: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in spec["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


# ------------------------------------------------------------ the document


async def test_it_is_valid(stack: Stack) -> None:
    spec = await fetched(stack)
    schemathesis.openapi.from_dict(spec).validate()
    for name, schema in spec["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        jsonschema_rs.meta.validate({"$schema": spec["jsonSchemaDialect"], **schema})
    for ref in refs(spec):
        name = ref.removeprefix("#/components/schemas/")
        assert name in spec["components"]["schemas"], ref
    ids = [operation["operationId"] for _, _, operation in operations(spec)]
    assert len(ids) == len(set(ids))
    for path, _, operation in operations(spec):
        named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert {"400", "413", "500"} <= operation["responses"].keys()


async def test_every_route_is_in_it() -> None:
    routers = (
        http.router,
        openapi.router,
        deadletters.router,
        retries.router,
        autoscale.router,
        resumable.router,
    )
    routes = {
        (r.path, m.lower()) for router in routers for r in router.routes if isinstance(r, APIRoute) for m in r.methods
    }
    declared = {(path, method) for path, method, _ in operations(openapi.document([]))}
    assert routes - declared == {("/apps/{name}", "post")}  # there is one path for each app instead
    assert declared <= routes


async def test_apps_come_and_go(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "passing.py"
    source = (APPS / "one.py").read_text().replace('App("one"', 'App("passing"')
    for text, more in (
        (source, False),
        (source.replace("pieces: int = 2", "pieces: int = 2\n    more: str = ''"), True),
    ):
        file.write_text(text)
        await stack.deploy(file)
        spec = await fetched(stack)
        assert "/apps/passing" in spec["paths"]
        assert ("more" in spec["components"]["schemas"]["passing.request"]["properties"]) is more
    await stack.clients[0].delete("/apps/passing", headers={"Authorization": f"Bearer {stack.admin}"})
    spec = await fetched(stack)
    assert "/apps/passing" not in spec["paths"]
    assert not any(name.startswith("passing.") for name in spec["components"]["schemas"])


async def test_models_of_one_name_do_not_clash() -> None:
    """Of two apps, and of the request and the response of one."""
    apps = [loaded("described"), load_app((APPS / "described.py").read_text().replace('"described"', '"described-2"'))]
    schemas = openapi.document(apps)["components"]["schemas"]
    parts = [f"{app}.{side}.Part" for app in ("described", "described-2") for side in ("request", "response")]
    assert schemas.keys() >= set(parts)
    assert schemas[parts[0]] != schemas[parts[1]]
    assert schemas[parts[0]]["properties"]["parts"]["items"] == {"$ref": f"#/components/schemas/{parts[0]}"}


# ------------------------------------------------------------ what it says of requests

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WHOLE: dict[str, Any] = {
    "text": "x",
    "count": 3,
    "ratio": 0.5,
    "extra": [{"any": None}],
    "colour": "green",
    "mode": "slow",
    "when": "2026-01-02T03:04:05Z",
    "part": {"name": "p", "weight": 1.5, "parts": [{"name": "q"}]},
    "tags": {"a": 1},
    "raw": "bytes as text",
    "said": "live or not",
}


async def test_requests_that_it_allows_are_taken(stack: Stack) -> None:
    spec = await fetched(stack)
    allowed = validator(spec, spec["components"]["schemas"]["described.request"])
    kept = (await stack.clients[0].post("/uploads", content=wav())).json()["digest"]
    for sound in (None, data_url(wav()), base64.b64encode(wav()).decode(), {"upload": kept}):
        body = {**WHOLE, "sound": sound, "pages": [data_url(PNG)], "files": [sound] if sound else None}
        allowed.validate(body)
        answer = await stack.clients[0].post("/apps/described", json=body)
        assert answer.status_code == 200, answer.text
        validator(spec, spec["components"]["schemas"]["described.answer"]).validate(answer.json())
        reply = answer.json()["response"]
        assert (reply["part"]["name"], reply["raw"]) == ("p", base64.b64encode(b"bytes as text").decode())


@pytest.mark.parametrize("ratio", ["NaN", "Infinity", "-Infinity", 1e308, 0])
async def test_what_is_no_number_is_told_by_its_name_and_may_be_sent_back(stack: Stack, ratio: Any) -> None:
    spec = await fetched(stack)
    body = {"text": "x", "ratio": ratio, "part": {"name": "p", "weight": ratio}}
    validator(spec, spec["components"]["schemas"]["described.request"]).validate(body)
    answer = await stack.clients[0].post("/apps/described", json=body)
    assert answer.status_code == 200, answer.text
    validator(spec, spec["components"]["schemas"]["described.answer"]).validate(answer.json())
    reply = answer.json()["response"]
    assert (reply["ratio"], reply["ratios"]) == (ratio, [ratio, ratio, None])
    form = {name: (None, str(value)) for name, value in {"text": "x", "ratio": ratio}.items()}
    answer = await stack.clients[0].post("/apps/described", files=form)
    assert answer.json()["response"]["ratio"] == ratio
    events = await stack.clients[0].post("/apps/described", json=body, headers={"Accept": "text/event-stream"})
    end = frames(events.text)[-1]
    validator(spec, events_of(spec, "described")["end"]).validate(end["data"])
    assert end["data"]["response"]["ratio"] == ratio


async def test_numbers_are_numbers_where_the_app_allows_no_others(stack: Stack) -> None:
    schemas = (await fetched(stack))["components"]["schemas"]
    assert schemas["described.response"]["properties"]["share"]["type"] == "number"
    assert schemas["described.form"]["properties"]["ratio"]["type"] == "number"  # as text, which has the names too
    names = {"enum": ["NaN", "Infinity", "-Infinity"]}
    for side in ("request", "response"):
        assert schemas[f"described.{side}"]["properties"]["ratio"]["anyOf"] == [{"type": "number"}, names]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": 5},
        {"text": "x", "other": 1},
        {"text": "x", "count": 6},
        {"text": "x", "colour": "blue"},
        {"text": "x", "part": {"name": "n", "other": 1}},
        {"text": "x", "part": {"name": "n" * 21}},
        {"text": "x", "tags": {"a": 2**64}},
        {"text": "x", "sound": 5},
        {"text": "x", "sound": "data:audio/wav,abc"},
        {"text": "x", "sound": "/etc/passwd"},
        {"text": "x", "sound": {"upload": "short"}},
        {"text": "x", "sound": {"upload": "0" * 64, "more": 1}},
        {"text": "x", "pages": "one"},
        {"text": "x", "files": [5]},
    ],
)
async def test_requests_that_it_does_not_allow_are_refused(stack: Stack, body: dict[str, Any]) -> None:
    spec = await fetched(stack)
    assert not validator(spec, spec["components"]["schemas"]["described.request"]).is_valid(body)
    answer = await stack.clients[0].post("/apps/described", json=body)
    assert answer.status_code == 422, answer.text
    validator(spec, spec["components"]["schemas"]["Error"]).validate(answer.json())


async def test_a_form_as_it_says(stack: Stack) -> None:
    form = (await fetched(stack))["components"]["schemas"]["described.form"]["properties"]
    parts: dict[str, Any] = {}
    for name, value in WHOLE.items():
        is_json = form[name].get("contentMediaType") == "application/json"
        assert is_json is (name in ("part", "tags", "colour", "extra")), name
        parts[name] = json.dumps(value) if is_json else str(value)
    for name in ("sound", "pages", "files"):
        one = form[name].get("items", form[name])
        assert (one["type"], one["format"]) == ("string", "binary"), name
    files = [("sound", ("s", wav())), ("pages", ("p", PNG)), ("pages", ("q", PNG)), ("files", ("f", b"any"))]
    answer = await stack.clients[0].post("/apps/described", data=parts, files=files)
    assert answer.status_code == 200, answer.text


async def test_text_for_bytes_in_a_form_stays_text(stack: Stack) -> None:
    for text in ("123", '"quoted"', "null"):
        answer = await stack.clients[0].post("/apps/described", files={"text": (None, "x"), "raw": (None, text)})
        assert answer.status_code == 200, answer.text
        assert answer.json()["response"]["raw"] == base64.b64encode(text.encode()).decode()


def events_of(spec: dict[str, Any], app: str) -> dict[str, dict[str, Any]]:
    """The schema of the data of an event, by kind."""
    content = spec["paths"][f"/apps/{app}"]["post"]["responses"]["200"]["content"]
    assert content["text/event-stream"]["schema"] == {"$ref": f"#/components/schemas/{app}.event"}
    lines = [event["properties"] for event in spec["components"]["schemas"][f"{app}.event"]["anyOf"]]
    return {line["event"]["const"]: line["data"]["contentSchema"] for line in lines}


async def test_events_are_as_it_says(stack: Stack) -> None:
    spec = await fetched(stack)
    kinds = {app: events_of(spec, app) for app in ("described", "mixed")}
    told = []
    for body in ({"text": "x"}, {"text": "x", "service_ms": 5000}):
        app, deadline = ("described", "20") if len(body) == 1 else ("mixed", "0.5")
        headers = {"Accept": "text/event-stream", "Cornstalk-Deadline": deadline}
        for event in frames((await stack.clients[0].post(f"/apps/{app}", json=body, headers=headers)).text):
            validator(spec, kinds[app][event["event"]]).validate(event["data"])
            told.append(event["event"])
    assert set(told) == {"chunk", "end", "error"}
    chunk = validator(spec, kinds["described"]["chunk"])
    piece = {"field": "text", "node": "n", "output": "text", "n": 0, "data": "x"}
    assert [chunk.is_valid(p) for p in (piece, {**piece, "data": 5}, {**piece, "field": "digest"})] == [
        True,
        False,
        False,
    ]
    assert chunk.is_valid({**piece, "fields": ["text", "again"]})
    assert not chunk.is_valid({**piece, "fields": ["text"]})
    for field, kind in (("sound", "audio/pcm;rate=24000;channels=1"), ("file", "application/octet-stream")):
        of_bytes = {**piece, "field": field, "media_type": kind}
        assert [
            chunk.is_valid(p) for p in (of_bytes, {**of_bytes, "media_type": "x/y"}, {**piece, "field": field})
        ] == [
            True,
            False,
            False,
        ]
    inner = {**piece, "field": "parts.0.sound"}
    assert all(chunk.is_valid(p) for p in (inner, {**inner, "media_type": "audio/pcm;rate=8000;channels=1"}))


# ------------------------------------------------------------ what it says of answers


async def test_a_file_that_is_given_back_is_named_as_requests_name_it(stack: Stack) -> None:
    spec = await fetched(stack)
    file: Any = data_url(wav())
    for _ in range(2):
        answer = await stack.clients[0].post("/apps/returned", json={"file": file})
        assert answer.status_code == 200, answer.text
        validator(spec, spec["components"]["schemas"]["returned.answer"]).validate(answer.json())
        reply = answer.json()["response"]
        file = reply["file"]
        assert reply["files"] == [file]
    events = await stack.clients[0].post("/apps/returned", json={"file": file}, headers={"Accept": "text/event-stream"})
    (end,) = frames(events.text)
    validator(spec, events_of(spec, "returned")["end"]).validate(end["data"])
    assert end["data"]["response"] == reply
    stored = await stack.clients[0].get(f"/requests/{end['data']['request']}")
    assert stored.json()["response"] == reply


JSON, FORM = "application/json", "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("path", "operation", "body", "kind", "headers", "status"),
    [
        ("/apps/mixed", "/apps/mixed", b"{", JSON, {}, 400),
        ("/apps/mixed", "/apps/mixed", b"nonsense", FORM, {}, 400),
        ("/apps/mixed", "/apps/mixed", b"{}", JSON, {}, 422),
        ("/apps/mixed", "/apps/mixed", b"{}", "text/plain", {}, 415),
        ("/apps/mixed", "/apps/mixed", b'{"text": "x"}', JSON, {"Content_Length": str(97 << 20)}, 413),
        ("/apps/mixed", "/apps/mixed", b'{"text": "' + b"x" * 9_000_000 + b'"}', JSON, {}, 413),
        ("/apps/mixed", "/apps/mixed", b'{"text": "x"}', JSON, {"Cornstalk_Deadline": "1e-9"}, 504),
        ("/apps/mixed", "/apps/mixed", b'{"text": "x"}', JSON, {"Cornstalk_Seed": "x"}, 422),
        ("/apps/mixed", "/apps/mixed", b'{"text": "x"}', JSON, {"Transfer_Encoding": "x"}, 400),
        ("/apps/one", "/apps/one", b'{"text": "x", "fail": "raise"}', JSON, {}, 502),
        ("/apps/one", "/apps/one", b'{"text": "x", "fail": "bug"}', JSON, {}, 502),
        ("/apps", "/apps", b"x", JSON, {}, 401),
        ("/apps", "/apps", b"x", JSON, {"Authorization": "Bearer x"}, 403),
        ("/uploads", "/uploads", b"", JSON, {}, 422),
        ("/uploads", "/uploads", b"abc", JSON, {}, 201),
    ],
)
async def test_statuses_of_bad_input_are_in_it(
    stack: Stack, path: str, operation: str, body: bytes, kind: str, headers: dict[str, str], status: int
) -> None:
    spec = await fetched(stack)
    request = post(path, body, kind, **headers)
    if "Content_Length" in headers:  # the one that counts
        request = request.replace(f"Content-Length: {len(body)}\r\n".encode(), b"")
    answer = await exchange(stack.ports[0], request)
    assert answer.status == status, answer
    declared = spec["paths"][operation]["post"]["responses"][str(status)]
    content = declared["content"][answer.headers["content-type"].partition(";")[0]]
    if answer.headers["content-type"] == JSON:
        validator(spec, content["schema"]).validate(json.loads(answer.body))


# ------------------------------------------------------------ what nobody can make it break

CONFORMS: list[Any] = [
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]


async def test_no_request_breaks_it(stack: Stack) -> None:
    """Requests made from the document, valid and not: no 5xx, and nothing that it does not say."""
    spec = await fetched(stack)
    for name in [name for name in spec["paths"] if name.startswith("/apps/") and name not in FUZZED]:
        del spec["paths"][name]  # their inputs can ask for an hour's work
    schema = schemathesis.openapi.from_dict(spec)
    schema.config.update(base_url=f"http://127.0.0.1:{stack.ports[0]}")
    known = {
        "request_id": (await stack.clients[0].post("/apps/described", json={"text": "known"})).json()["request"],
        "digest": (await stack.clients[0].post("/uploads", content=b"known")).json()["digest"],
    }
    await asyncio.to_thread(fuzz, schema, stack.admin, known)


def fuzz(schema: Any, admin: str, known: dict[str, str]) -> None:
    for found in schema.get_all_operations():
        fuzz_one(found.ok(), admin, known)


def fuzz_one(operation: Any, admin: str, known: dict[str, str]) -> None:
    """`known`: names of things that are there, by parameter."""
    runs_an_app = operation.method == "post" and operation.path.startswith("/apps/")
    cases = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @settings(
        max_examples=EXAMPLES["invoke" if runs_an_app else "other"],
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(cases), events=st.booleans(), there=st.booleans())
    def one(case: Any, events: bool, there: bool) -> None:
        if there and case.path_parameters:
            case.path_parameters |= {name: value for name, value in known.items() if name in case.path_parameters}
        headers = {"Accept": "text/event-stream" if events and runs_an_app else "*/*"}
        if case.method == "GET":  # the others would deploy and remove
            headers["Authorization"] = f"Bearer {admin}"
        response = case.call(headers=headers, timeout=30)
        assert response.status_code < 500 or expected(case, response), (case.as_curl_command(), response.text)
        case.validate_response(response, checks=CONFORMS)

    one()


def expected(case: Any, response: Any) -> bool:
    """A deadline that is too short for any answer."""
    given = (case.headers or {}).get("Cornstalk-Deadline")
    return given is not None and response.status_code == 504 and float(given) < ENOUGH
