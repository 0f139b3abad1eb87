"""Server-sent events as a test sees them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx


def frames(text: str) -> list[dict[str, Any]]:
    """Whole events as dicts of event, id and data; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append({**lines, "data": json.loads(lines["data"])})
    return found


async def live(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Events as they come."""
    buffer = ""
    async for text in response.aiter_text():
        *blocks, buffer = (buffer + text).split("\n\n")
        for block in blocks:
            for event in frames(block):
                yield event


def told(events: list[dict[str, Any]], field: str) -> str:
    """What the chunks of a field add up to."""
    return "".join(e["data"]["data"] for e in events if e["event"] == "chunk" and e["data"]["field"] == field)
