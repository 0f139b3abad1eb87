"""Pictures all the way: from the door of the gateway to the models and back, on real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cornstalk.cli.paths import examples
from cornstalk.tasks import LLM, ReadText
from tests.components.media_files import pages, picture, scene
from tests.components.test_media_images import bomb
from tests.components.test_ocr_engine import PARIS, drawn
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(dispatchers=1, replicas=1, env={"HF_HUB_OFFLINE": "1"}) as running:
        await running.deploy(examples() / "map_reduce.py")
        await running.deploy(examples() / "spoken_answer.py", workers=False)  # those for sound are not needed here
        yield running


async def test_the_text_in_a_picture_is_the_question(stack: Stack) -> None:
    photo = picture(drawn(PARIS), "JPEG", quality=90)
    answer = await stack.clients[0].post("/apps/spoken_answer", data={"speak": "false"}, files={"image": ("a", photo)})
    response = answer.json()["response"]
    assert (response["question"], response["speech"]) == (PARIS, "")
    assert "Paris" in response["text"]
    nodes = (await stack.clients[0].get(f"/requests/{answer.json()['request']}")).json()["nodes"]
    assert {n["component"] for n in nodes} == {ReadText().component, LLM().component}


async def test_every_page_is_read_and_summed_up(stack: Stack) -> None:
    words = ["Dear Madam, we sell chairs.", "Two chairs cost 40 euros.", "Please pay by Friday."]
    sent = await stack.clients[0].post("/uploads", content=pages(*map(drawn, words), compression="tiff_lzw"))
    named = {"image": {"upload": sent.json()["digest"]}}
    response = (await stack.clients[0].post("/apps/map_reduce", json=named)).json()["response"]
    assert response["pages"] == words
    assert response["summary"]


async def test_bad_pictures_at_the_door_and_behind_it(stack: Stack) -> None:
    cases = [
        (b"I am a text\n", 415, "unsupported_media", "expected image (by its content), got text/plain"),
        (bomb("png"), 413, "too_large", "got 30000 x 30000"),
        (picture(scene(), "PNG")[:18], 422, "bad_input", "got a broken one: its header breaks off"),
        (picture(scene(), "PNG")[:-80], 422, "bad_image", "the picture cannot be read"),
    ]
    for data, status, code, said in cases:
        answer = await stack.clients[0].post("/apps/map_reduce", files={"image": ("a.png", data)})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), answer.text
        assert said in error["message"]
