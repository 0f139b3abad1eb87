"""One running stack with two gateways for all modules, and clients of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cornstalk import AsyncClient
from tests.e2e.apps import APPS
from tests.stack import ROOT, Stack

ENGINES = ("Whisper", "ReadText", "Watch", "LLM", "TextToSpeech")
"""What tests/client/standin stands in for."""


def urls_of(stack: Stack) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in stack.ports]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stack() -> AsyncIterator[Stack]:
    async with Stack(gateways=2) as running:
        for name in ("one", "chain", "mixed", "twice"):
            await running.deploy(APPS / f"{name}.py")
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def client(stack: Stack) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(urls_of(stack), admin_token=stack.admin) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spoken(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack with examples/spoken_answer.py, with stand-ins for its models, and the app of docs/websocket.md."""
    site = tmp_path_factory.mktemp("site")
    info = site / "standin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    tasks = "".join(f"standin:{name} = standin:Engine\n" for name in ENGINES)
    (info / "entry_points.txt").write_text(f"[cornstalk.engines]\n{tasks}")
    example = (ROOT / "examples" / "spoken_answer.py").read_text()
    app = site / "spoken_answer.py"
    app.write_text(example.replace("from cornstalk.tasks import", "from standin import"))
    path = ":".join(map(str, (ROOT, Path(__file__).parent / "standin", site)))
    async with Stack(gateways=2, env={"PYTHONPATH": path}) as running:
        await running.deploy(app)
        echo = site / "echo_app.py"
        echo.write_text(
            re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "websocket.md").read_text(), re.M | re.S)[0]
        )
        await running.deploy(echo)
        yield running
