"""Keeping real processes running, and dying with the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from cornstalk.cli.paths import child_argv, child_env
from cornstalk.cli.process import LOG_LIMIT, Child, Kept, rotate
from cornstalk.cli.procfs import cpu_seconds, start_time
from tests.cli.tool import wait_until
from tests.waiting import eventually

SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
STUBBORN = [
    sys.executable,
    "-S",
    "-c",
    "import signal; signal.signal(15, signal.SIG_IGN); print('on', flush=True)\nwhile 1: signal.pause()",
]


def kept(tmp_path: Path, argv: list[str]) -> tuple[Kept, list[int]]:
    changes: list[int] = []
    child = Child("child", argv, dict(os.environ), tmp_path)
    return Kept(child, lambda: changes.append(child.pid)), changes


async def test_a_killed_process_comes_back(tmp_path: Path) -> None:
    one, changes = kept(tmp_path, SLEEP)
    one.start()
    first = one.process.pid
    try:
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: one.starts == 2 and one.process.poll() is None)
        assert one.process.pid != first
        assert changes
    finally:
        await one.stop(5.0)
    assert one.process.poll() is not None


async def test_a_process_that_always_ends_is_started_ever_more_slowly(tmp_path: Path) -> None:
    one, _ = kept(tmp_path, [sys.executable, "-S", "-c", "import time; print(time.monotonic())"])
    one.start()
    await eventually(lambda: one.starts >= 4, within=10.0)
    await one.stop(5.0)
    times = [float(line) for line in (tmp_path / "child.log").read_text().split()]
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses[0] >= 0.09
    assert pauses[1] >= 0.19


async def test_a_stubborn_process_is_killed_after_its_grace(tmp_path: Path) -> None:
    one, _ = kept(tmp_path, STUBBORN)
    one.start()
    await eventually(lambda: "on" in (tmp_path / "child.log").read_text())
    await one.stop(0.2)
    assert one.process.poll() == -signal.SIGKILL


async def test_a_program_that_is_missing_is_an_error_at_once(tmp_path: Path) -> None:
    one, _ = kept(tmp_path, [str(tmp_path / "nothing")])
    try:
        one.start()
    except FileNotFoundError:
        return
    raise AssertionError("started")


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    (tmp_path / "forever.py").write_text("import os, signal\nprint(os.getpid(), flush=True)\nsignal.pause()\n")
    parent = (
        "import subprocess, signal\nfrom cornstalk.cli.paths import child_argv\n"
        "subprocess.Popen(child_argv('forever'))\nsignal.pause()\n"
    )
    env = child_env({**os.environ, "PYTHONPATH": str(tmp_path)})
    with subprocess.Popen([sys.executable, "-c", parent], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert start_time(pid)
        process.kill()
    wait_until(lambda: start_time(pid) is None)


def test_a_child_whose_parent_is_another_ends_at_once() -> None:
    argv = child_argv("this")
    argv[3] = "1"
    done = subprocess.run(argv, capture_output=True, text=True, timeout=10)
    assert done.returncode == 1
    assert "parent died" in done.stderr


def test_a_large_log_is_moved_aside(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    rotate(log)
    log.write_bytes(b"short")
    rotate(log)
    assert log.exists()
    os.truncate(log, LOG_LIMIT + 1)
    rotate(log)
    assert not log.exists()
    assert (tmp_path / "x.log.1").stat().st_size == LOG_LIMIT + 1


def test_the_kernel_knows_this_process() -> None:
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert cpu_seconds(os.getpid()) > 0
    assert start_time(2**22 + 1) is None
