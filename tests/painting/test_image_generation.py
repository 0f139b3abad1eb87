"""Images on real processes, two workers a component: what diffusers makes in one piece, whatever dies."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import pytest_asyncio

from cornstalk.cli.paths import examples
from cornstalk.client import AsyncClient
from cornstalk.tasks import ImageGeneration
from tests.cli.tool import cornstalk
from tests.faults.stored import ends
from tests.painting.conftest import Family
from tests.painting.test_image_engine import PROMPTS, near
from tests.painting.tiny_diffusion import SIDE
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = [pytest.mark.models, pytest.mark.asyncio(loop_scope="package")]

ASK: Final[dict[str, Any]] = {"negative_prompt": "bad", "steps": 8, "guidance": 4.0, "width": SIDE, "height": SIDE}


@dataclass
class Served:
    """The example, deployed with a small model."""

    family: Family
    stack: Stack
    client: AsyncClient
    generator: str
    """Component id. The first of its workers dies with its first piece."""

    async def image(self, prompt: str, seed: int, **more: Any) -> Any:
        answer = await self.client.invoke("image_generation", {**ASK, "prompt": prompt, "seed": seed, **more})
        assert answer.response["seed"] == seed
        return pixels(answer.response["image"])

    def whole(self, prompt: str, seed: int) -> Any:
        size = {name: ASK[name] for name in ("width", "height")}
        return self.family.whole.image(
            prompt, ASK["negative_prompt"], seed=seed, steps=ASK["steps"], guidance=ASK["guidance"], **size
        )

    async def largest_batch(self) -> float:
        found = {c["id"]: c for c in (await self.stack.clients[0].get("/components")).json()["components"]}
        return max(worker["stats"].get("largest_batch", 0.0) for worker in found[self.generator]["workers"])


def pixels(png: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png)))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def served(family: Family, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    task = ImageGeneration(str(family.folder), "float32")
    app = tmp_path_factory.mktemp("apps") / "image_generation.py"
    example = (examples() / "image_generation.py").read_text()
    app.write_text(example.replace("(MODEL)", f'({str(family.folder)!r}, "float32")'))
    dying = {f"{task.generator.component}@0": "worker.chunk"}
    async with Stack(dispatchers=2, crash=dying, env={"HF_HUB_OFFLINE": "1"}) as stack:
        components = (await stack.deploy(app, workers=False))["components"]
        assert set(components) == {task.encoder.component, task.generator.component}
        for component in components:
            stack.start_workers(component)
        for component in components:
            await stack.wait_workers(component, 2, within=180)
        async with AsyncClient(f"http://127.0.0.1:{stack.ports[0]}") as client:
            yield Served(family, stack, client, task.generator.component)


async def test_eight_at_once_while_a_worker_dies(served: Served) -> None:
    """Each is what it is alone, but for one step of 8 bits; the generator that is left had four and more in a step."""
    expected = [await asyncio.to_thread(served.whole, prompt, seed) for seed, prompt in enumerate(PROMPTS)]
    made = await asyncio.gather(*(served.image(prompt, seed) for seed, prompt in enumerate(PROMPTS)))
    assert all(map(near, made, expected))
    assert not any(near(one, other) for one, other in pairwise(made))
    assert not served.stack.children[f"{served.generator}@0"].alive

    async def seen() -> bool:
        return await served.largest_batch() >= 4

    await eventually(seen, within=10, every=0.5)


async def test_alone_it_is_bit_for_bit_what_diffusers_makes(served: Served) -> None:
    for seed, prompt in ((3, "the sea"), (2**63 - 1, "")):
        made = await served.image(prompt, seed)
        assert np.array_equal(made, await asyncio.to_thread(served.whole, prompt, seed))


async def test_the_seed_that_was_drawn_makes_it_again(served: Served) -> None:
    one, other = [
        await served.client.invoke("image_generation", {**ASK, "prompt": "a cat", "previews": 1}) for _ in range(2)
    ]
    assert one.response["seed"] != other.response["seed"]
    assert not near(pixels(one.response["image"]), pixels(other.response["image"]))
    assert np.array_equal(pixels(one.response["image"]), await served.image("a cat", one.response["seed"]))


async def test_progress_comes_while_it_is_made(served: Served) -> None:
    asked = {**ASK, "prompt": "a cat", "steps": 40, "previews": 1, "seed": 1}
    kinds: list[str] = []
    async with served.stack.clients[0].stream(
        "POST", "/apps/image_generation", json=asked, headers={"Accept": "text/event-stream"}
    ) as response:
        steps, previews = [], []
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            data = json.loads(line.removeprefix("data: "))
            kinds.append(data.get("field", "end"))
            if data.get("field") == "progress":
                steps += [event["step"] for event in data["data"]]
                previews += [event["preview"] for event in data["data"] if event["preview"]]
            elif data.get("field") == "image":
                assert data["media_type"] == "image/png"
    assert steps == list(range(1, steps[-1] + 1))
    assert len(previews) == 1
    assert base64.b64decode(previews[0]).startswith(b"\xff\xd8")
    assert kinds.count("progress") > 3
    assert kinds[-1] == "end"


async def test_cancelled_while_it_is_made(served: Served) -> None:
    asked = {**ASK, "prompt": "a cat", "steps": 500}
    sent = served.stack.clients[0].build_request(
        "POST", "/apps/image_generation", json=asked, headers={"Accept": "text/event-stream"}
    )
    response = await served.stack.clients[0].send(sent, stream=True)
    request = response.headers["cornstalk-request"]
    await anext(response.aiter_lines())  # it has begun
    assert (await served.stack.clients[0].delete(f"/requests/{request}")).status_code == 202

    async def stopped() -> bool:
        return "cancelled" in {end.outcome for end in await ends(served.stack, request)}

    await eventually(stopped, within=5)
    await response.aclose()


async def test_the_command_line_saves_it(served: Served, tmp_path: Path) -> None:
    file, url = tmp_path / "cat.png", f"http://127.0.0.1:{served.stack.ports[0]}"
    options = [f"--set={name}={value}" for name, value in {**ASK, "seed": 3}.items()]
    asked = ("invoke", "image_generation", "the sea", *options, "--save", file, "--url", url)
    done = await asyncio.to_thread(cornstalk, *asked)
    assert done.returncode == 0, done.stderr
    assert f"image: {file}\n" in done.stdout
    assert np.array_equal(pixels(file.read_bytes()), await asyncio.to_thread(served.whole, "the sea", 3))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("width", 100),
        ("height", 1),
        ("steps", 0),
        ("guidance", "NaN"),
        ("guidance", -1),
        ("seed", -1),
        ("previews", 99),
    ],
)
async def test_refused_at_the_door(served: Served, field: str, value: Any) -> None:
    answer = await served.stack.clients[0].post("/apps/image_generation", json={**ASK, "prompt": "x", field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (422, "bad_input", field)


async def test_a_prompt_that_is_too_long_says_so(served: Served) -> None:
    answer = await served.stack.clients[0].post("/apps/image_generation", json={**ASK, "prompt": "word " * 600})
    assert answer.json()["error"]["code"] == "prompt_too_long"
