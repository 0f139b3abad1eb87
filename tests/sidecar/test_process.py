"""The daemon as a process: its socket is private, it is alone, small, and knows no torch."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.client import SidecarClient
from sidecar.errors import SidecarDown
from tests.sidecar.actors import pattern
from tests.sidecar.conftest import MIB, OWNER, Connect, Sidecar
from tests.waiting import eventually


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sidecar", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def test_socket_and_directory_are_private(directory: Path) -> None:
    sidecar = Sidecar(directory / "made" / "s.sock")
    sidecar.path.parent.parent.chmod(0o755)
    sidecar.log = directory / "log"
    sidecar.start()
    assert stat.S_IMODE(sidecar.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sidecar.path.parent.stat().st_mode) == 0o700
    assert sidecar.end() == 0
    assert not sidecar.path.exists()


def test_a_second_daemon_is_refused(sidecar: Sidecar) -> None:
    second = run("--socket", str(sidecar.path))
    assert second.returncode == 1
    assert "another sidecar serves" in second.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--socket", "/" + "x" * 200), "107 bytes"),
        (("--socket", "/proc/nowhere/s"), "cannot make the socket"),
        (("--socket", "/tmp/never-made", "--bytes", str(1 << 50)), "are available"),
        (("--socket", "/tmp/never-made", "--bytes", "5"), "at least"),
        ((), "CORNSTALK_SIDECAR"),
    ],
)
def test_what_cannot_start_says_why(arguments: tuple[str, ...], why: str) -> None:
    result = run(*arguments)
    assert result.returncode != 0
    assert why in result.stderr
    assert "Traceback" not in result.stderr


async def test_the_daemon_is_small_and_maps_no_arena(sidecar: Sidecar, connect: Connect) -> None:
    client = await connect(quota=32 * MIB)
    for index in range(3):
        await client.put_copy(OWNER, "out", index, pattern(1, 8 * MIB), expires=time.time() + 60, wait=2.0)
    maps = Path(f"/proc/{sidecar.pid}/maps").read_text()
    assert "cornstalk-arena" not in maps
    assert "torch" not in maps
    status = dict(line.split(":", 1) for line in Path(f"/proc/{sidecar.pid}/status").read_text().splitlines())
    assert int(status["VmRSS"].split()[0]) < 150 * 1024


async def test_descriptors_do_not_pile_up(sidecar: Sidecar, connect: Connect) -> None:
    def descriptors(pid: int | str) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    def as_before() -> bool:
        # attempts to find NATS and the threads of a loop come and go
        return descriptors(sidecar.pid) <= before[0] + 3 and descriptors("self") <= before[1] + 3

    first = await connect()
    await first.put_copy(OWNER, "out", 0, pattern(1, 10), expires=time.time() + 60, wait=2.0)
    before = descriptors(sidecar.pid), descriptors("self")
    for _ in range(10):
        client = await SidecarClient.connect(sidecar.path, name="passing", quota=MIB, limit=MIB)
        ref = await client.put_copy(OWNER, "out", 0, pattern(1, 10), expires=time.time() + 60, wait=2.0)
        (await first.get(ref)).release()
        await client.drop(OWNER)
        await client.close()
    await eventually(as_before)


async def test_no_daemon_is_a_typed_error_that_says_what_to_do(directory: Path) -> None:
    with pytest.raises(SidecarDown, match="python -m sidecar"):
        await SidecarClient.connect(directory / "none.sock", name="x", wait=0.2)
