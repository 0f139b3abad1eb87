"""kill -9 of a worker with vLLM in it: none of its processes stays, nor what they shared."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Final

import psutil

from tests.shm import shared_files
from tests.stack import ROOT
from tests.waiting import eventually

WORKER: Final = """
import asyncio
from components.llm.vllm_engine import VllmEngine
from cornstalk.tasks import LLM
from tests.components.fake_call import FakeCall
from tests.vllm.conftest import ARGUMENTS

async def main():
    engine = VllmEngine(LLM(engine="vllm", dtype="float32", engine_args=ARGUMENTS))
    await engine.start()
    call = FakeCall(prompt="Tell me a story.", max_tokens=900)
    call.on_emit = lambda call: len(call.log) == 2 and print("speaking", flush=True)
    await engine.run(call)

if __name__ == "__main__":
    asyncio.run(main())
"""


async def test_no_process_outlives_the_worker_and_no_shared_memory(tmp_path: Path) -> None:
    script, below = tmp_path / "worker.py", list[psutil.Process]()
    script.write_text(WORKER)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, script, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        await speaking(worker)
        below = psutil.Process(worker.pid).children(recursive=True)
        assert len([p for p in below if "VLLM" in "".join(p.cmdline())]) >= 2, "the engine core and its worker"
        shared = shared_files([worker.pid, *(process.pid for process in below)])
        assert shared, "there is something that could stay"
    finally:
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    await eventually(lambda: not any(alive(p) for p in below), within=20.0)
    await eventually(lambda: not any(Path(name).exists() for name in shared), within=20.0)


async def speaking(worker: asyncio.subprocess.Process) -> None:
    assert worker.stdout is not None
    async with asyncio.timeout(240):
        while await worker.stdout.readline() != b"speaking\n":
            assert worker.returncode is None


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
