"""`cornstalk demo`: real models on this machine. A spoken question in, text and speech out, then a worker is killed."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from cornstalk.cli.ask import Ask
from cornstalk.cli.console import note, working
from cornstalk.cli.demo_crash import crash_round
from cornstalk.cli.demo_report import Report, show
from cornstalk.cli.demo_requests import Asked, ask_one, wav_bytes, workers_ready
from cornstalk.cli.errors import CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.paths import PACKAGE, examples
from cornstalk.cli.state import State, store_path
from cornstalk.cli.tree import Config
from cornstalk.cli.up import own_tree

WORKERS: Final = 2
DISPATCHERS: Final = 2
AT_ONCE: Final = 8
ROUNDS: Final = 3
"""Tries to kill a worker while it holds an item: it may end its item in the instant before."""
KEEP: Final = 120.0
"""Seconds that the facts of an ended request are kept, to be read for the report."""


def demo(question: str, store: Path | None, as_json: bool) -> None:
    """Runs it on a tree of its own. Raises CliError when anything is not as it should be."""
    kept = nullcontext(str(store_path(store)))
    with tempfile.TemporaryDirectory(prefix="cornstalk-demo-") if store is None else kept as folder:
        apps = (examples() / "spoken_answer.py", examples() / "transcribe.py", PACKAGE / "cli" / "speak_app.py")
        config = Config(Path(folder), 0, 1, DISPATCHERS, WORKERS, "local", None, apps)
        with own_tree(config) as state:
            report = asyncio.run(_run(state, config.store, question))
        if as_json:
            print(json.dumps(report.figures()))
        else:
            show(report)
    if wrong := report.wrong():
        raise CliError("the demo went wrong", why="; ".join(wrong), next="cornstalk demo --store DIR  (keeps its logs)")


async def _run(state: State, store: Path, question: str) -> Report:
    async with Gateway(state.urls) as gateway:
        with working("the workers load their models"):
            await workers_ready(gateway, store, WORKERS)
        report = Report(question)
        with working("speaking the question"):
            spoken = await ask_one(gateway, Ask("speak", {"text": question}, grace=KEEP))
        report.add(spoken)
        sound = wav_bytes(spoken.answer, "speech")
        note(f"asked aloud: {question}")
        with working("listening, thinking, speaking"):
            report.main = await _answer(gateway, report, sound)
        note(f"answered: {report.answer}")
        with working("hearing the answer"):
            report.heard_back = await _hear(gateway, report)
        with working(f"{AT_ONCE} at once, and kill -9 for a worker that holds an item"):
            await _crash(gateway, report, sound)
    return report


def _spoken_question(sound: bytes) -> Ask:
    return Ask("spoken_answer", files=[("audio", "question.wav", sound)], grace=KEEP)


async def _answer(gateway: Gateway, report: Report, sound: bytes) -> Asked:
    answered = await ask_one(gateway, _spoken_question(sound))
    report.add(answered)
    return answered


async def _hear(gateway: Gateway, report: Report) -> str:
    assert report.main is not None
    speech = wav_bytes(report.main.answer, "speech")
    heard = await ask_one(gateway, Ask("transcribe", files=[("audio", "answer.wav", speech)], grace=KEEP))
    report.add(heard)
    return str(heard.answer.response()["text"]).strip()


async def _crash(gateway: Gateway, report: Report, sound: bytes) -> None:
    for _ in range(ROUNDS):
        crash = await crash_round(gateway, [_spoken_question(sound)] * AT_ONCE)
        report.crashes.append(crash)
        for one in crash.requests:
            report.add(one)
        if crash.recovery is not None:
            return
