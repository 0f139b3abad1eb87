"""docs/batch.md: its blocks are run on a tree of their own; what it gives the `nats` command is published as it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shlex
from pathlib import Path

import nats

from cornstalk.cli.state import read_state
from tests.cli.tool import cornstalk
from tests.docs.blocks import DOCS, blocks
from tests.docs.guide import Guide

PAGE = (DOCS / "batch.md").read_text()


async def published(store: Path, subject: str, data: bytes) -> dict[str, object]:
    """The summary of job night-3, published with nothing but nats-py, as the nats command would."""
    state = read_state(store)
    assert state is not None
    token = Path(json.loads((store / "state.json").read_text())["nats_token_file"]).read_text().strip()
    connection = await nats.connect(json.loads((store / "state.json").read_text())["nats_url"], token=token)
    job = hashlib.blake2b(b"default\0marks\0night-3", digest_size=16).hexdigest()
    await connection.publish(subject, data)
    results = await connection.jetstream().subscribe(f"batch.result.{job}.summary", ordered_consumer=True)
    message = await results.next_msg(timeout=30)
    await connection.close()
    found: dict[str, object] = json.loads(message.data)
    return found


def test_what_the_page_says_is_so(tmp_path: Path) -> None:
    guide = Guide(tmp_path)
    *steps, down = blocks("batch")
    try:
        for block in steps:
            guide.follow(block)
        (command,) = re.findall(r"^    (nats pub .*)$", PAGE, re.MULTILINE)
        _, _, subject, data = shlex.split(command)
        summary = asyncio.run(published(tmp_path / ".cornstalk", subject, data.encode()))
        assert (summary["status"], summary["rows"], summary["done"]) == ("done", 1, 1)
        guide.follow(down)
    finally:
        cornstalk("down", "--store", tmp_path / ".cornstalk")
