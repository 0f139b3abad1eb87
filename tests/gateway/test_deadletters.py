"""Dead letters over HTTP: who may read them, what they say, page by page, without the payload."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest
import pytest_asyncio

from broker.subjects import DLQ, dead_letter
from cornstalk.messages import Error, Upload, WorkItem, encode
from tests.stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "the prompt of a user"
SOUND = Upload("ab" * 32, 4, "audio/wav")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def letters(stack: Stack) -> list[int]:
    """Twelve dead letters and one fact that does not decode; their ids, oldest first."""
    ids = []
    for number in range(12):
        request = f"{number:032x}"
        item = WorkItem(
            request=request,
            node="n",
            gen=0,
            component="null-x",
            lane="interactive",
            tenant="default",
            deadline=time.time() + 60,
            inputs={"text": SECRET, "upload": SOUND, "data": b"\x00\xff"},
        )
        error = Error(code="asked_to_fail", message="asked to fail", component="null-x", node="n", attempt="a")
        body = encode({"item": encode(item), "error": error, "attempts": number + 1})
        ids.append(await _publish(stack, dead_letter("null-x", "failed", request, "n", 0), body))
    subject = dead_letter("dispatcher", "malformed", "f" * 32, "none", 0)
    ids.append(await _publish(stack, subject, SECRET.encode(), {"Cornstalk-Subject": "run.x.end"}))
    return ids


async def _publish(stack: Stack, subject: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    stored = await stack.broker.publish_stored(subject, body, deadline=time.time() + 5, headers=headers)
    return stored.seq


async def get(stack: Stack, path: str, token: str = "") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token or stack.admin}"}
    return await stack.clients[0].get(path, headers=headers)


async def listed(stack: Stack, **query: int) -> dict[str, Any]:
    pairs = "&".join(f"{k}={v}" for k, v in query.items())
    answer = await get(stack, f"/dead-letters?{pairs}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_only_who_runs_the_system_may_read_them(stack: Stack, letters: list[int]) -> None:
    for path in ("/dead-letters", f"/dead-letters/{letters[0]}"):
        assert (await stack.clients[0].get(path)).status_code == 401
        assert (await get(stack, path, "a" * 32)).status_code == 403


async def test_newest_first_with_cause_and_no_payload(stack: Stack, letters: list[int]) -> None:
    found = (await listed(stack))["dead_letters"]
    assert [letter["id"] for letter in found] == letters[::-1]
    malformed, newest = found[:2]
    assert newest["component"] == "null-x"
    assert (newest["reason"], newest["node"], newest["gen"]) == ("failed", "n", 0)
    assert newest["request"] == f"{11:032x}"
    assert newest["error"]["code"] == "asked_to_fail"
    assert newest["attempts"] == 12
    assert 0 <= time.time() - newest["at"] < 60
    assert (malformed["component"], malformed["reason"]) == ("dispatcher", "malformed")
    assert malformed["subject"] == "run.x.end"
    assert "error" not in malformed
    assert SECRET not in json.dumps(found)


@pytest.mark.parametrize("limit", [1, 5, 13, 500])
async def test_page_by_page_each_once(stack: Stack, letters: list[int], limit: int) -> None:
    seen: list[int] = []
    query = {"limit": limit}
    for _ in range(20):
        page = await listed(stack, **query)
        assert len(page["dead_letters"]) <= limit
        seen += [letter["id"] for letter in page["dead_letters"]]
        if "next" not in page:
            break
        query["before"] = page["next"]
    assert seen == letters[::-1]


async def test_one_letter_with_its_item(stack: Stack, letters: list[int]) -> None:
    answer = await get(stack, f"/dead-letters/{letters[3]}")
    body = answer.json()
    assert (body["id"], body["attempts"]) == (letters[3], 4)
    assert (body["item"]["lane"], body["item"]["tenant"]) == ("interactive", "default")
    assert body["item"]["inputs"]["text"]["type"] == "str"
    assert body["item"]["inputs"]["text"]["nbytes"] > len(SECRET)
    assert SECRET not in answer.text
    whole = (await get(stack, f"/dead-letters/{letters[3]}?payload=true")).json()["item"]["inputs"]
    assert whole["text"]["value"] == SECRET
    assert whole["data"]["value"] == "AP8="
    assert whole["upload"]["value"] == {"kind": "Upload", "digest": "ab" * 32, "nbytes": 4, "media_type": "audio/wav"}
    assert (await get(stack, f"/dead-letters/{letters[-1]}")).json()["item"] is None


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/dead-letters?limit=0", 422, "limit"),
        ("/dead-letters?limit=501", 422, "limit"),
        ("/dead-letters?limit=x", 422, "limit"),
        ("/dead-letters?before=-1", 422, "before"),
        ("/dead-letters/x", 422, "id"),
        ("/dead-letters/0", 422, "id"),
        ("/dead-letters/" + "9" * 40, 422, "id"),
        ("/dead-letters/999999", 404, "id"),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    stack: Stack, letters: list[int], path: str, status: int, field: str
) -> None:
    answer = await get(stack, path)
    assert answer.status_code == status
    assert answer.json()["error"]["field"] == field


async def test_gaps_of_letters_that_are_gone(stack: Stack, letters: list[int]) -> None:
    for seq in (letters[0], letters[4], letters[5], letters[12]):
        await stack.broker.api(f"STREAM.MSG.DELETE.{DLQ}", {"seq": seq})
    left = [seq for seq in letters if seq not in (letters[0], letters[4], letters[5], letters[12])]
    seen: list[int] = []
    query = {"limit": 3}
    for _ in range(20):
        page = await listed(stack, **query)
        seen += [letter["id"] for letter in page["dead_letters"]]
        if "next" not in page:
            break
        query["before"] = page["next"]
    assert seen == left[::-1]
