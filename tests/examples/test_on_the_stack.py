"""The examples on real processes and real weights, from the command line or the door of the gateway and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cornstalk.cli.paths import examples
from cornstalk.task import UnitTask
from cornstalk.tasks import LLM, ReadText, SampleFrames, TextToSpeech
from tests.cli.tool import cornstalk
from tests.components.media_files import Array, encoded_sound, pages, picture, scene, tone, video
from tests.components.test_media_images import bomb
from tests.components.test_ocr_engine import PARIS, drawn
from tests.stack import Stack

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(env={"HF_HUB_OFFLINE": "1"}) as running:
        for name in ("map_reduce", "loop_until", "pick_tool", "agent"):
            await running.deploy(examples() / f"{name}.py")
        await running.deploy(examples() / "spoken_answer.py", workers=False)  # those for sound are not needed here
        running.start_workers(SampleFrames().component)
        await running.wait_workers(SampleFrames().component, running.replicas)
        yield running


def clip(*texts: str, seconds: int = 2) -> bytes:
    """A video that shows each text so long."""
    frames: list[Array] = [drawn(text, size=32, width=640)[:90] for text in texts for _ in range(4 * seconds)]
    return video(frames, fps=4, key=8)


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


async def test_the_texts_in_a_video_are_the_question(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "clip.mp4"
    file.write_bytes(clip("What is the", "capital of France?"))
    url = f"http://127.0.0.1:{stack.ports[0]}"
    asked = ("invoke", "spoken_answer", "--video", file, "--set", "speak=false", "--json", "--url", url)
    done = await asyncio.to_thread(cornstalk, *asked, within=120)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["response"]["question"] == "What is the\ncapital of France?"
    assert "Paris" in answer["response"]["text"]
    nodes = (await stack.clients[0].get(f"/requests/{answer['request']}")).json()["nodes"]
    components = [n["component"] for n in nodes]
    assert components == [SampleFrames().component, *[ReadText().component] * 4, LLM().component]


async def test_bad_videos_at_the_door_and_behind_it(stack: Stack) -> None:
    whole = clip("What?")
    cases = [
        (b"I am a text\n", 415, "unsupported_media", "expected video (by its content), got text/plain"),
        (picture(scene(), "PNG"), 415, "unsupported_media", "expected video (by its content), got image/png"),
        (encoded_sound(tone(440, 44_100), 44_100, "mp4", "aac"), 415, "unsupported_media", "got audio/mp4"),
        (b"", 422, "bad_input", "empty"),
        (whole[:-300], 422, "bad_video", "the video"),
        (video([scene(8, 8)] * 601, fps=1), 413, "too_long", "lasts 601.0 s; the limit is 600 s"),
        (video([scene(4096, 4098)] * 2, codec="mpeg4"), 413, "too_large", "4098 x 4096 pixels; 16000000 can be read"),
    ]
    for data, status, code, said in cases:
        answer = await stack.clients[0].post("/apps/spoken_answer", files={"video": ("a.mp4", data)})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, code), answer.text
        assert said in error["message"]
        assert error.get("field") == "video" or error["component"] == SampleFrames().component


async def test_a_video_whose_bytes_are_over_the_limit(stack: Stack) -> None:
    answer = await stack.clients[0].post("/apps/spoken_answer", files={"video": ("a.mp4", clip("x") + bytes(64 << 20))})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


# ------------------------------------------------------------ loops and branches


async def ran(stack: Stack, app: str, **request: Any) -> tuple[dict[str, Any], list[str]]:
    """The response, and the components of its calls in order."""
    answer = await stack.clients[0].post(f"/apps/{app}", json=request)
    assert answer.status_code == 200, answer.text
    nodes = (await stack.clients[0].get(f"/requests/{answer.json()['request']}")).json()["nodes"]
    response: dict[str, Any] = answer.json()["response"]
    return response, [n["component"] for n in nodes]


@pytest.mark.parametrize(("words", "rounds", "passed"), [(200, 1, True), (1, 3, False)])
async def test_it_asks_again_until_an_answer_passes(stack: Stack, words: int, rounds: int, passed: bool) -> None:
    found, calls = await ran(stack, "loop_until", text="Write a sentence about the sea.", words=words)
    assert (len(found["tries"]), found["passed"]) == (rounds, passed)
    assert found["text"] == min(found["tries"], key=len)
    assert calls == [LLM().component] * rounds


@pytest.mark.parametrize(
    ("text", "tool", "calls"),
    [
        ("What is 17 * 23?", "calculator", [LLM()]),
        ("Read this aloud: good night", "voice", [LLM(), TextToSpeech()]),
        ("Who wrote Hamlet?", "mind", [LLM(), LLM()]),
    ],
)
async def test_the_model_picks_a_tool(stack: Stack, text: str, tool: str, calls: list[UnitTask]) -> None:
    found, components = await ran(stack, "pick_tool", text=text)
    assert found["tool"] == tool
    assert components == [task.component for task in calls]
    if tool == "calculator":
        assert found["text"] == "391"
    assert bool(found["speech"]) is (tool == "voice")


async def test_each_step_of_an_agent_is_one_that_can_be_read(stack: Stack) -> None:
    """However small the model: what it says fits the schema."""
    found, components = await ran(stack, "agent", text="What does an apple cost?")
    assert components == [LLM().component] * len(components)
    assert 1 <= len(components) <= 5
    assert all(note.partition(" ")[0] in ("price", "calculate") for note in found["notes"])
    assert found["text"]
