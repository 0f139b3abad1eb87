"""Requests of the demo: asked at once, timed at the client, and read back with what happened to each node."""

from __future__ import annotations

import asyncio
import io
import time
import wave
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cornstalk.cli.ask import Answer, Ask, raise_failure, stream
from cornstalk.cli.errors import TIMED_OUT, CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.state import read_state

LOADED_WITHIN: Final = 120.0
HOPELESS: Final = 3
"""Starts of a worker that never became ready, after which no further one is awaited."""
POLL_EVERY: Final = 0.1


@dataclass
class Asked:
    """One request from the client's side; `view` is what GET /requests/{id} said after its end."""

    answer: Answer = field(default_factory=Answer)
    began: float = 0.0
    ended: float = 0.0
    view: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft(self) -> float:
        """Seconds to the first text."""
        return self.answer.first_text - self.began

    @property
    def ttfa(self) -> float:
        """Seconds to the first sound."""
        return self.answer.first_sound - self.began

    @property
    def total(self) -> float:
        return self.ended - self.began


async def ask_one(gateway: Gateway, ask: Ask) -> Asked:
    """Raises CliError when it fails."""
    asked = await _ask(gateway, ask)
    raise_failure(asked.answer)
    return asked


async def ask_all(gateway: Gateway, asks: Sequence[Ask]) -> list[Asked]:
    """All at once; one that fails is an answer like any other. Raises CliError when the gateways are gone."""
    return await asyncio.gather(*(_ask(gateway, ask) for ask in asks))


async def _ask(gateway: Gateway, ask: Ask) -> Asked:
    asked = Asked(began=time.time())
    async for _ in stream(gateway, ask, asked.answer):
        pass
    asked.ended = time.time()
    asked.view = await gateway.call("GET", f"/requests/{asked.answer.request}")
    return asked


async def workers_ready(gateway: Gateway, store: Path, count: int) -> None:
    """Returns when each component has `count` workers that have loaded. Raises CliError: at once when one cannot."""
    end = time.monotonic() + LOADED_WITHIN
    while True:
        components = (await gateway.call("GET", "/components"))["components"]
        missing = [c["id"] for c in components if sum(w["ready"] for w in c["workers"]) < count]
        if components and not missing:
            return
        _raise_if_one_cannot(store, missing)
        if time.monotonic() > end:
            raise CliError(
                f"no {count} workers of {', '.join(missing) or 'any component'} within {LOADED_WITHIN:.0f} s",
                why="they still load, or cannot",
                next="cornstalk demo --store DIR, then read DIR/logs",
                exit_code=TIMED_OUT,
            )
        await asyncio.sleep(POLL_EVERY)


def _raise_if_one_cannot(store: Path, missing: Sequence[str]) -> None:
    state = read_state(store)
    for process in state.processes if state else []:
        if process.starts >= HOPELESS and process.name.rpartition(".")[0] in missing:
            log = store / "logs" / f"{process.name}.log"
            said = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise CliError(f"a worker of {process.name} ends each time it starts", why=said[-1], next=f"read {log}")


def wav_bytes(answer: Answer, name: str) -> bytes:
    """A sound of an answer as a WAV file. Raises CliError when there is none."""
    rate, pcm = answer.rate(name), answer.sounds.get(name, b"")
    if not pcm or rate is None:
        raise CliError(f"the answer has no sound in {name!r}", why=f"request {answer.request}")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm)
    return buffer.getvalue()
