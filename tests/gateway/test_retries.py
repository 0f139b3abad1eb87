"""Dead letters that are asked again, on the app as it is now, and removed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker.subjects import UPLOADS
from components.null import digest
from cornstalk.tasks.null import Null
from tests.gateway.sound import wav
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

APP = """
from pydantic import BaseModel
from cornstalk import App, CompositeTask, Upload
from cornstalk.tasks.null import Null

class Ask(BaseModel):
    text: str
    sound: Upload | None = None

class Reply(BaseModel):
    digest: str

class Mended(CompositeTask):
    value = Null(name="mended")

    def invoke(self, q: Ask) -> Reply:
        return Reply(digest=self.value(text=q.text, upload=q.sound, fail="raise").digest)

app = App("mended", Mended())
"""


def admin(stack: Stack) -> dict[str, str]:
    return {"Authorization": f"Bearer {stack.admin}"}


async def call(stack: Stack, method: str, path: str, gateway: int = 0) -> httpx.Response:
    return await stack.clients[gateway].request(method, path, headers=admin(stack))


async def letter_of(stack: Stack, request: str) -> int:
    letters = (await call(stack, "GET", "/dead-letters")).json()["dead_letters"]
    (found,) = [letter["id"] for letter in letters if letter["request"] == request]
    return int(found)


async def deploy(stack: Stack, folder: Path, mended: bool) -> None:
    path = folder / "mended.py"
    path.write_text(APP.replace(', fail="raise"', "") if mended else APP)
    await stack.deploy(path)


async def failed(stack: Stack, text: str, sound: bytes) -> int:
    """The dead letter of a request with an upload."""
    files = {"sound": ("a.wav", sound, "audio/wav")}
    answer = await stack.clients[0].post("/apps/mended", data={"text": text}, files=files)
    assert answer.status_code == 502, answer.text
    return await letter_of(stack, answer.json()["request"])


async def finished(stack: Stack, request: str) -> dict[str, Any]:
    async def status() -> dict[str, Any] | None:
        told: dict[str, Any] = (await stack.clients[0].get(f"/requests/{request}")).json()
        return told if told["status"] == "done" else None

    found = await eventually(status, within=15)
    assert found is not None
    return found


async def test_a_request_is_asked_again_once_its_app_is_mended(stack: Stack, tmp_path: Path) -> None:
    """With its upload; by two who do not know of each other; and it is one request."""
    await deploy(stack, tmp_path, mended=False)
    sound = wav(0.2)
    letter = await failed(stack, "again", sound)
    await deploy(stack, tmp_path, mended=True)
    answers = await asyncio.gather(*(call(stack, "POST", f"/dead-letters/{letter}/retry") for _ in range(2)))
    asked = [a.json()["request"] for a in answers if a.status_code == 202]
    assert asked
    assert len(set(asked)) == 1
    assert {a.status_code for a in answers} <= {202, 404}
    told = await finished(stack, asked[0])
    assert told["response"] == {"digest": digest("mended", {**Null.defaults, "text": "again", "upload": sound})}
    assert (await call(stack, "GET", f"/dead-letters/{letter}")).status_code == 404


async def test_what_is_not_whole_any_more_is_not_asked_again(stack: Stack, tmp_path: Path) -> None:
    await deploy(stack, tmp_path, mended=False)
    letter = await failed(stack, "expired", wav(0.3))
    await stack.broker.api(f"STREAM.PURGE.{UPLOADS}")
    answer = await call(stack, "POST", f"/dead-letters/{letter}/retry")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cannot_retry")
    assert (await call(stack, "GET", f"/dead-letters/{letter}")).status_code == 200
    assert (await call(stack, "POST", "/dead-letters/999999/retry")).status_code == 404
    assert (await stack.clients[0].post(f"/dead-letters/{letter}/retry")).status_code == 401


async def test_letters_are_removed_one_by_one_or_by_what_they_are(stack: Stack, tmp_path: Path) -> None:
    await deploy(stack, tmp_path, mended=False)
    ids = [await failed(stack, f"r{i}", wav(0.1)) for i in range(3)]
    component = Null(name="mended").component
    assert (await call(stack, "DELETE", f"/dead-letters/{ids[0]}")).json() == {"removed": 1}
    assert (await call(stack, "DELETE", f"/dead-letters/{ids[0]}")).status_code == 404
    assert (await call(stack, "DELETE", f"/dead-letters?component={component}&reason=poison")).json() == {"removed": 0}
    removed = (await call(stack, "DELETE", f"/dead-letters?component={component}")).json()["removed"]
    assert removed >= 2
    left = json.loads((await call(stack, "GET", "/dead-letters")).text)["dead_letters"]
    assert not [letter for letter in left if letter["component"] == component]
    assert (await call(stack, "DELETE", "/dead-letters?component=a.b")).status_code == 422
