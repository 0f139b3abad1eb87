"""A tree that scales one component, `burst`, and clients whose answers are known beforehand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import httpx

from broker.connection import Broker
from broker.reads import pages
from broker.subjects import CHUNKS, chunks_of
from components.null import digest, stream_of
from cornstalk.cli.procfs import start_time
from cornstalk.messages import Chunk, decode
from cornstalk.tasks.null import NullStream
from tests.cli.tool import APPS, cornstalk
from tests.cli.trees import state_of, up
from tests.waiting import eventually

SLOTS: Final = 2
LATE: Final = 90.0
"""Seconds for what takes a few on an idle machine."""


def answer_to(text: str, pieces: int) -> str:
    """What the app says, by arithmetic alone."""
    inputs = {**NullStream.defaults, "text": text}
    return stream_of(digest("burst", inputs), pieces)


class Scaled:
    """One tree, until the block ends."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.requests: list[str] = []
        self.most = 0  # worker processes at once, those that drain included, as far as somebody looked

    @classmethod
    @asynccontextmanager
    async def up(cls, store: Path, **policy: int) -> AsyncIterator[Self]:
        with up(store, "--autoscale", APPS / "burst.py"):
            self = cls(store)
            state = state_of(store)
            token = Path(state.nats_token_file).read_text().strip()
            self.broker = await Broker.connect(state.nats_url, name="test", token=token)
            self.client = httpx.AsyncClient(base_url=state.url, timeout=LATE, trust_env=False)
            try:
                self.component: str = (await self.client.get("/components")).json()["components"][0]["id"]
                if policy:
                    await self.set(**policy)
                yield self
            finally:
                await self.client.aclose()
                await self.broker.close()

    async def set(self, **policy: int) -> None:
        flags = [part for name, value in policy.items() for part in (f"--{name}", str(value))]
        done = await self.command("set", *flags)
        assert done.startswith("min "), done

    async def explained(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.command("explain", "-n", "64", "--json"))
        return found

    async def command(self, verb: str, *args: str) -> str:
        done = await asyncio.to_thread(
            cornstalk, "autoscale", verb, self.component, "--store", self.store, *args, within=LATE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def workers(self) -> dict[str, int]:
        """Name and pid of the worker processes that live."""
        found = {
            p.name: p.pid
            for p in state_of(self.store).processes
            if p.name.startswith(f"{self.component}.") and start_time(p.pid)
        }
        self.most = max(self.most, len(found))
        return found

    def log(self) -> str:
        """What the tree itself wrote."""
        return (self.store / "logs" / "up.log").read_text()

    def draining(self) -> list[str]:
        """Names of the workers that were told to end."""
        return re.findall(r"(\S+) drains$", self.log(), re.MULTILINE)

    async def there_are(self, count: int) -> None:
        await eventually(lambda: len(self.workers()) == count, within=LATE, every=0.02)

    async def ready(self, count: int) -> None:
        """So many workers take items."""

        async def beating() -> bool:
            pids = set(self.workers().values())
            beats = (await self.client.get("/components")).json()["components"][0]["workers"]
            return len(pids) == count and pids <= {beat["pid"] for beat in beats if beat["ready"]}

        await eventually(beating, within=LATE, every=0.05)

    async def ask(self, text: str, pieces: int = 4, service_ms: float = 50.0, lane: str = "interactive") -> None:
        """One request, whose answer must be the right one."""
        body = {"text": text, "pieces": pieces, "service_ms": service_ms}
        headers = {"Cornstalk-Lane": lane, "Cornstalk-Deadline": str(LATE)}
        answer = await self.client.post("/apps/burst", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        self.requests.append(answer.json()["request"])
        assert answer.json()["response"]["text"] == answer_to(text, pieces)

    async def burst(self, name: str, count: int, **how: Any) -> asyncio.Task[None]:
        """Requests at once, every third one in the batch lane; done when all are answered right."""

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    lane = "batch" if number % 3 == 0 else "interactive"
                    group.create_task(self.ask(f"{name} {number}", lane=lane, **how))

        return asyncio.create_task(all_of_them())

    async def attempts(self, request: str) -> int:
        """How many attempts made the pieces of its answer."""
        chunks = [decode(Chunk, s.data) async for s in pages(self.broker, CHUNKS, chunks_of(request))]
        return len({chunk.attempt for chunk in chunks if not chunk.takeover})

    async def each_ran_once(self) -> None:
        """No item was begun twice."""
        assert [request for request in self.requests if await self.attempts(request) != 1] == []
