"""What type checkers see, and what `import cornstalk` costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

USE = """
from typing import Any, assert_type

from pydantic import BaseModel

import cornstalk
from cornstalk.client import Answer, Chunk, End


class Question(BaseModel):
    text: str


class Reply(BaseModel):
    digest: str


async def use(client: cornstalk.AsyncClient) -> None:
    app = client.app("one", Question, Reply)
    assert_type(await app.invoke(Question(text="x"), deadline=3), Answer[Reply])
    assert_type((await client.invoke("one", text="x", response_model=Reply)).response, Reply)
    assert_type((await client.invoke("one", text="x")).response, dict[str, Any])
    assert_type((await client.app("one").invoke({"text": "x"})).response, dict[str, Any])
    async with app.stream(Question(text="x")) as stream:
        async for event in stream:
            assert_type(event, Chunk | End[Reply])
        async for piece in stream.text("text"):
            assert_type(piece, str)
        assert_type((await stream.answer()).response, Reply)
    await app.invoke(Reply(digest="x"))  # type: ignore[arg-type]
    async with app.session(deadline=3) as session, client.session("one", response_model=Reply) as other:
        assert_type(await session.invoke(Question(text="x")), Answer[Reply])
        assert_type((await other.invoke(text="x")).response, Reply)
        async with session.stream(Question(text=""), open=["text"]) as live:
            assert_type(await live.send("text", "x"), bool)
            assert_type(await live.answer(), Answer[Reply])
        await session.invoke(Reply(digest="x"))  # type: ignore[arg-type]
    assert_type(await client.upload(b"x"), cornstalk.Upload)


def use_in_threads(client: cornstalk.Client) -> None:
    app = client.app("one", Question, Reply)
    assert_type(app.invoke(Question(text="x")), Answer[Reply])
    with client.stream("one", text="x") as stream:
        for event in stream:
            assert_type(event, Chunk | End[dict[str, Any]])
    with app.session() as session, session.stream(Question(text="x")) as live:
        assert_type(live.send("text", "x"), bool)
        for piece in live:
            assert_type(piece, Chunk | End[Reply])
"""


def test_type_checkers_see_the_models(tmp_path: Path) -> None:
    file = tmp_path / "use.py"
    file.write_text(USE)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(file)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_importing_cornstalk_imports_no_http_library() -> None:
    code = "import sys, cornstalk; print('httpx' in sys.modules); cornstalk.Client; print('httpx' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert said.stdout.split() == ["False", "True"]
