"""Looking into a running tree: files in, traces, dead letters, logs, watching; and every exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import struct
import wave
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from components.null import digest
from cornstalk.tasks.null import Null
from tests.cli.tool import APPS, argv, cornstalk, environment, started, wait_until
from tests.cli.trees import pid_of, ready_workers, state_of, up


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Requests are kept for their grace, half a second at least: that of `cornstalk invoke` is 10 s."""
    store = tmp_path_factory.mktemp("inspect") / "store"
    with up(store, APPS / "words.py", APPS / "files.py", grace=0.5):
        wait_until(lambda: ready_workers(store) == {"Null": 2, "NullStream": 2}, within=30)
        yield store


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound, two pictures, and bytes that are neither."""
    folder = tmp_path_factory.mktemp("files")
    with wave.open(str(folder / "a.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(1600))
    for shade in (0, 255):
        (folder / f"{shade}.png").write_bytes(png(shade))
    (folder / "note.txt").write_text("no sound")
    return folder


def png(shade: int) -> bytes:
    """One grey pixel."""

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + part(b"IHDR", head)
        + part(b"IDAT", zlib.compress(bytes([0, shade])))
        + part(b"IEND", b"")
    )


def mark(**inputs: Any) -> str:
    """What the null task of the app answers."""
    return digest("cli", {**Null.defaults, **inputs})


def asked(tree: Path, *args: str | Path) -> dict[str, Any]:
    done = cornstalk("invoke", *args, "--json", "--store", tree)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def ended(tree: Path, app: str, **values: Any) -> str:
    """The id of a request that has ended: kept for a minute, for commands that look at it may take their time."""
    headers = {"Cornstalk-Resume-Grace": "60"}
    answer = httpx.post(f"{state_of(tree).url}/apps/{app}", json=values, headers=headers, timeout=60)
    return str(answer.json()["request"])


def failing(tree: Path, fail: str = "raise") -> str:
    """The id of a request that failed, kept for a minute."""
    return ended(tree, "files", text="a secret", fail=fail)


def test_files_find_their_fields(tree: Path, files: Path) -> None:
    sound, dark, light, note = (files / name for name in ("a.wav", "0.png", "255.png", "note.txt"))
    named = asked(tree, "files", "--audio", sound, "--image", dark, "--image", light, "--file", f"other={note}")
    by_field = [
        ("--file", f"{name}={path}")
        for name, path in zip(["sound", "pictures", "pictures", "other"], (sound, dark, light, note), strict=True)
    ]
    plain = asked(tree, "files", *(part for pair in by_field for part in pair), "--field", "text=")
    expected = [mark(text=""), *(mark(upload=path.read_bytes()) for path in (sound, dark, light, note))]
    assert named["response"]["digests"] == plain["response"]["digests"] == expected


def test_text_is_streamed_or_printed_whole(tree: Path) -> None:
    shown = [
        cornstalk("invoke", "words", "x", flag, "--store", tree).stdout.splitlines()
        for flag in ("--stream", "--no-stream")
    ]
    assert shown[0][0] == shown[1][1].removeprefix("text: ")
    assert shown[0][1] == shown[1][0]


def traced(tree: Path, request: str) -> dict[str, Any]:
    view: dict[str, Any] = json.loads(cornstalk("trace", request, "--json", "--store", tree).stdout)
    return view


def test_a_trace_of_a_request_that_ended(tree: Path, tmp_path: Path) -> None:
    request = ended(tree, "words", text="x", service_ms=20)
    page = tmp_path / "trace.html"
    done = cornstalk("trace", request, "--html", page, "--store", tree)
    assert done.returncode == 0, done.stderr
    head, *rest = done.stdout.splitlines()
    assert head.split()[:4] == ["request", request, "words", "done"]
    [talk] = [line for line in rest if line.startswith("talk#0")]
    queue, _, run, first, chunks = map(float, talk.split()[-5:])
    assert chunks == sum(n["chunks"]["text"] for n in traced(tree, request)["nodes"] if n["id"] == "talk#0") > 1
    assert run >= 80
    assert 20 <= first - queue <= run + 60
    assert rest[-1] == str(page)
    assert request in page.read_text()
    assert {node["outcome"] for node in traced(tree, request)["nodes"]} == {"done"}


def test_a_trace_of_a_request_that_runs(tree: Path) -> None:
    with (
        httpx.Client(base_url=state_of(tree).url) as client,
        client.stream(
            "POST",
            "/apps/words",
            json={"text": "r", "pieces": 1000, "service_ms": 50},
            headers={"Accept": "text/event-stream"},
        ) as response,
    ):
        request = response.headers["cornstalk-request"]
        pieces = response.iter_bytes()
        next(pieces)
        done = cornstalk("trace", request, "--store", tree)
        assert client.delete(f"/requests/{request}").status_code == 202
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].split()[3] == "running"
    assert "◆" in next(line for line in done.stdout.splitlines() if line.startswith("talk#0"))


def test_a_trace_of_a_request_that_failed(tree: Path, tmp_path: Path) -> None:
    request = failing(tree)
    page = tmp_path / "trace.html"
    done = cornstalk("trace", request, "--html", page, "--store", tree)
    assert done.returncode == 0, done.stderr
    assert "mark#0 (failed): asked to fail [asked_to_fail] (app.py:" in done.stdout
    assert "request failed: " in done.stdout
    assert "asked to fail" in page.read_text()
    assert "a secret" not in page.read_text()


def test_a_trace_that_was_purged_says_so(tree: Path) -> None:
    request = httpx.post(f"{state_of(tree).url}/apps/files", json={}).json()["request"]
    wait_until(lambda: cornstalk("trace", request, "--store", tree).returncode == 1, within=20)
    done = cornstalk("trace", request, "--store", tree)
    assert f"request {request} ended done, and what happened was purged" in done.stderr
    assert done.stdout == ""


def test_dead_letters_keep_their_payload_to_themselves(tree: Path) -> None:
    request = failing(tree)
    listed = cornstalk("dlq", "ls", "--store", tree)
    assert listed.returncode == 0, listed.stderr
    newest = listed.stdout.splitlines()[1]
    assert request in newest
    assert "asked to fail [asked_to_fail]" in newest
    letters = json.loads(cornstalk("dlq", "ls", "--json", "-n", "1", "--store", tree).stdout)["dead_letters"]
    assert [letter["request"] for letter in letters] == [request]
    id = str(letters[0]["id"])
    shown = cornstalk("dlq", "show", id, "--store", tree)
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["attempts", "1"] in lines
    assert ["input", "text", "str,", "9", "bytes"] in lines
    assert "a secret" not in listed.stdout + shown.stdout
    assert '"a secret"' in cornstalk("dlq", "show", id, "--payload", "--store", tree).stdout
    assert json.loads(cornstalk("dlq", "show", id, "--json", "--store", tree).stdout)["item"]["lane"] == "interactive"


def test_a_dead_letter_is_asked_again_and_removed(tree: Path) -> None:
    def letters() -> list[dict[str, Any]]:
        return json.loads(cornstalk("dlq", "ls", "--json", "--store", tree).stdout)["dead_letters"]

    failing(tree)
    id = letters()[0]["id"]
    done = cornstalk("dlq", "retry", str(id), "--json", "--store", tree)
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)["request"]
    wait_until(lambda: again in {letter["request"] for letter in letters()}, within=20)  # it fails as it did
    assert id not in {letter["id"] for letter in letters()}
    assert "unknown_dead_letter" in cornstalk("dlq", "retry", str(id), "--store", tree).stderr
    newest = letters()[0]
    assert cornstalk("dlq", "purge", str(newest["id"]), "--store", tree).stdout == "1 removed\n"
    others = len(letters())
    purged = cornstalk(
        "dlq", "purge", "--component", newest["component"], "--reason", "failed", "--json", "--store", tree
    )
    assert json.loads(purged.stdout)["removed"] <= others
    assert cornstalk("dlq", "purge", "--store", tree).returncode == 2
    assert cornstalk("dlq", "purge", "--all", "--store", tree).returncode == 0
    assert letters() == []


def test_a_worker_that_dies_each_time_is_traced_as_poison(tree: Path) -> None:
    request = failing(tree, "exit")
    done = cornstalk("trace", request, "--store", tree)
    assert "mark#0 (failed, 3 restarts): its worker died each time it was started [poison]" in done.stdout
    assert "poison" in cornstalk("dlq", "ls", "-n", "1", "--store", tree).stdout


def test_logs_of_a_running_tree(tree: Path) -> None:
    done = cornstalk("logs", "nats", "-n", "1000", "--store", tree)
    assert "Server is ready" in done.stdout
    every = cornstalk("logs", "--store", tree).stdout
    assert "operator" in every
    assert "null-cli-" in every


def test_watching_from_a_script(tree: Path) -> None:
    args = argv("status", "--watch", "--store", tree)
    with started(args, text=True) as process:
        assert process.stdout is not None
        while "gateway-0: pid" not in (line := process.stdout.readline()):
            assert line
        before = pid_of(tree, "gateway-0")
        os.kill(before, signal.SIGKILL)
        while "gateway-0: pid" not in (line := process.stdout.readline()) or f" {before}," in line:
            assert line
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


def test_watching_on_a_terminal_draws_in_place(tree: Path) -> None:
    ours, theirs = pty.openpty()
    env = environment(TERM="xterm", COLUMNS="120", LINES="50")
    with started(argv("status", "--watch", "--store", tree), stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while shown.count(b"COMPONENT") < 3:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: process.poll() is not None)
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[1A" in shown  # the cursor goes back up


@pytest.mark.parametrize(
    ("code", "args"),
    [
        (0, ["invoke", "words", "x"]),
        (1, ["invoke", "words", "x", "--set", "pieces=many"]),
        (1, ["invoke", "files", "--set", "text=x", "--set", "fail=raise"]),
        (1, ["trace", "0" * 32]),
        (1, ["dlq", "show", "999999"]),
        (2, ["invoke", "words", "--image", __file__]),
        (2, ["invoke", "files", "--audio", "missing.wav"]),
        (2, ["logs", "nobody"]),
        (4, ["invoke", "words", "x", "--set", "service_ms=5000", "--deadline", "0.5"]),
    ],
)
def test_exit_codes(tree: Path, code: int, args: list[str]) -> None:
    done = cornstalk(*args, "--store", tree)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


def test_uploads_are_what_the_app_says(tree: Path, files: Path) -> None:
    done = cornstalk("invoke", "files", "--audio", files / "note.txt", "--store", tree)
    assert done.returncode == 1
    assert "sound" in done.stderr
    assert "unsupported_media" in done.stderr
