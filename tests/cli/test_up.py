"""A whole tree, started as a user starts it: null components, two gateways, two dispatchers, two workers each."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from components.null import digest, stream_of
from cornstalk.cli.procfs import start_time
from cornstalk.cli.state import read_state
from cornstalk.tasks.null import Null, NullStream
from tests.cli.tool import APPS, argv, cornstalk, started, wait_until
from tests.cli.trees import FLAGS, all_pids, pid_of, ready_workers, state_of, status, up
from tests.faults.client import Answer


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    store = tmp_path_factory.mktemp("up") / "store"
    began = time.monotonic()
    with up(store, "--gateways", "2", APPS / "words.py"):
        assert time.monotonic() - began < 30
        wait_until(lambda: ready_workers(store) == {"Null": 2, "NullStream": 2}, within=30)
        yield store


def test_what_runs(tree: Path) -> None:
    state = state_of(tree)
    assert state.ready
    assert len(state.urls) == 2
    names = {p.name for p in state.processes}
    assert {"nats", "sidecar", "operator", "dispatcher-0", "dispatcher-1", "gateway-0", "gateway-1"} <= names
    assert len(names) == 7 + 4
    assert oct(tree.stat().st_mode)[-3:] == "700"
    assert (tree / "logs" / "gateway-0.log").exists()
    found = status(tree)
    assert [a["name"] for a in found["apps"]] == ["words"]
    assert sorted(found["gateways"]) == sorted(state.urls)


def test_sets_have_one_order_on_all_gateways(tree: Path) -> None:
    """A request that another gateway takes over must not take another way there."""

    def seed(name: str) -> str:
        environ = Path(f"/proc/{pid_of(tree, name)}/environ").read_bytes().decode().split("\0")
        return dict(entry.partition("=")[::2] for entry in environ)["PYTHONHASHSEED"]

    assert seed("gateway-0") == seed("gateway-1")
    assert seed("gateway-0").isdigit()


def test_status_for_a_person(tree: Path) -> None:
    done = cornstalk("status", "--store", tree)
    assert done.returncode == 0
    for word in ("words", "COMPONENT", "2 of 2", "dispatcher-1"):
        assert word in done.stdout


def test_invoke_streams_text(tree: Path) -> None:
    done = cornstalk("invoke", "words", "hello", "--field", "pieces=3", "--store", tree)
    assert done.returncode == 0, done.stderr
    text, digest = done.stdout.splitlines()
    assert len(text) == 3 * 16
    assert digest.startswith("digest: ")


def test_invoke_json_is_the_same_answer(tree: Path) -> None:
    args = ("invoke", "words", "hello", "--json", "--store", tree)
    first, second = (json.loads(cornstalk(*args).stdout) for _ in range(2))
    assert first["status"] == "done"
    assert first["response"] == second["response"]
    assert first["request"] != second["request"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["nothing", "text"], 1, "no app 'nothing'"),
        (["words", "--field", "text=a", "--field", "colour=red"], 1, "colour"),
        (["words", "a", "--field", "pieces=many"], 1, "pieces"),
        (["words"], 1, "text"),
        (["words", "a", "--deadline", "0"], 1, "Cornstalk-Deadline"),
        (["words", "--audio", __file__], 2, "takes no --audio"),
        (["words", "slow", "--field", "service_ms=5000", "--deadline", "1"], 4, "expired"),
    ],
)
def test_bad_input_says_which_field(tree: Path, args: list[str], code: int, words: str) -> None:
    done = cornstalk("invoke", *args, "--store", tree)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_tree_in_the_same_store_is_refused(tree: Path) -> None:
    for detach in ([], ["--detach"]):
        done = cornstalk("up", "--store", tree, *FLAGS, *detach)
        assert done.returncode == 1
        assert f"process {state_of(tree).pid} holds it" in done.stderr


def test_apps_that_share_a_component(tree: Path) -> None:
    done = cornstalk("deploy", APPS / "mark.py", "--store", tree)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mark ")
    found = {c["task"].rpartition(":")[2]: c for c in status(tree)["components"]}
    assert sorted(found["Null"]["apps"]) == ["mark", "words"]
    assert cornstalk("invoke", "mark", "x", "--store", tree).returncode == 0
    removed = cornstalk("deploy", "--remove", "mark", "--store", tree)
    assert removed.stdout == "removed mark\n"
    assert cornstalk("invoke", "words", "x", "--store", tree).returncode == 0


def test_a_bad_app_names_its_line(tree: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("x = 1\ny = x +\n")
    done = cornstalk("deploy", bad, "--store", tree)
    assert done.returncode == 1
    assert ":2:" in done.stderr


@pytest.mark.parametrize("name", ["worker", "gateway-0", "dispatcher-0", "operator", "sidecar", "nats"])
def test_a_killed_process_comes_back_and_requests_go_on(tree: Path, name: str) -> None:
    if name == "worker":
        name = next(p.name for p in state_of(tree).processes if p.name.endswith(".0"))
    before = pid_of(tree, name)
    os.kill(before, signal.SIGKILL)
    done = cornstalk("invoke", "words", "again", "--store", tree)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: pid_of(tree, name) not in (0, before))


def test_a_stream_goes_on_when_its_gateway_is_killed(tree: Path) -> None:
    whole = cornstalk("invoke", "words", "cut", "--field", "pieces=40", "--store", tree).stdout
    args = argv("invoke", "words", "cut", "--field", "pieces=40", "--field", "service_ms=50", "--store", tree)
    with started(args) as process:
        assert process.stdout is not None
        first = process.stdout.read(16)
        os.kill(pid_of(tree, "gateway-0"), signal.SIGKILL)
        rest, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    assert (first + rest).decode() == whole
    wait_until(lambda: pid_of(tree, "gateway-0"))


def test_a_stream_goes_on_whichever_worker_is_killed(tree: Path) -> None:
    wait_until(lambda: ready_workers(tree) == {"Null": 2, "NullStream": 2}, within=30)
    component = next(c["id"] for c in status(tree)["components"] if c["task"].endswith(":NullStream"))
    args = argv("invoke", "words", "w", "--field", "pieces=50", "--field", "service_ms=100", "--store", tree)
    with started(args) as process:
        assert process.stdout is not None
        process.stdout.read(16)
        for name in (f"{component}.0", f"{component}.1"):
            before = pid_of(tree, name)
            os.kill(before, signal.SIGKILL)
            wait_until(lambda name=name, before=before: pid_of(tree, name) not in (0, before))  # type: ignore[misc]
        rest, errors = process.communicate(timeout=40)
    assert process.returncode == 0, errors
    assert len(rest.splitlines()[0]) == 49 * 16


def test_ctrl_c_cancels_the_request(tree: Path) -> None:
    args = argv("invoke", "words", "c", "--field", "pieces=1000", "--field", "service_ms=50", "--store", tree)
    with started(args) as process:
        assert process.stdout is not None
        process.stdout.read(16)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"the request was cancelled" in errors
    wait_until(lambda: all(sum(c["in_flight"].values()) == 0 for c in status(tree)["components"]))


def test_removing_the_last_app_ends_the_workers_of_what_only_it_used(tree: Path) -> None:
    assert "drains" in cornstalk("deploy", "--remove", "words", "--store", tree).stdout
    wait_until(lambda: not any("null-" in p.name for p in state_of(tree).processes), within=30)
    assert cornstalk("deploy", APPS / "words.py", "--store", tree).returncode == 0
    assert cornstalk("invoke", "words", "back", "--store", tree).returncode == 0


def test_a_killed_tree_leaves_nothing_and_its_store_starts_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with up(store, APPS / "words.py"):
        pids = all_pids(store)
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: not any(start_time(pid) for pid in pids))
        assert cornstalk("status", "--store", store).returncode == 3
        with up(store):
            done = cornstalk("invoke", "words", "still here", "--store", store)
            assert done.returncode == 0, done.stderr


def test_durable_work_ends_right_after_kill_9_of_every_process(tmp_path: Path) -> None:
    """Client, gateway, workers, tensors, NATS: only the store is left, and the tree is started on it again."""
    store = tmp_path / "store"
    texts = [f"durable {i}" for i in range(4)]
    with up(store, APPS / "words.py"):
        requests = [durable(state_of(store).url, text) for text in texts]
        pids = all_pids(store)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(start_time(pid) for pid in pids))
        with up(store):
            url = state_of(store).url
            wait_until(lambda: all(is_done(url, request) for request in requests), within=90)
            for request, text in zip(requests, texts, strict=True):
                answer = Answer(request)
                for frame in httpx.get(f"{url}/requests/{request}/events").text.split("\n\n"):
                    answer.take(frame)
                spoken = stream_of(digest("cli", {**NullStream.defaults, "text": text}), 40)
                marked = digest("cli", {**Null.defaults, "text": text})
                assert answer.response == {"digest": marked, "text": spoken}


def durable(url: str, text: str) -> str:
    """Begins a durable request and returns when its first piece is there; 4 s of it are to come."""
    headers = {"Cornstalk-Durable": "true", "Accept": "text/event-stream", "Cornstalk-Deadline": "300"}
    body = {"text": text, "pieces": 40, "service_ms": 100}
    with httpx.stream("POST", f"{url}/apps/words", json=body, headers=headers) as answer:
        assert next(answer.iter_lines()).startswith("event: chunk")
        return answer.headers["cornstalk-request"]


def is_done(url: str, request: str) -> bool:
    return bool(httpx.get(f"{url}/requests/{request}").json()["status"] == "done")


def test_in_the_foreground_it_prints_its_urls_and_stops_in_order(tmp_path: Path) -> None:
    store = tmp_path / ("long" * 30) / "store"
    args = argv("up", "--store", store, *FLAGS)
    with started(args, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert httpx.get(f"{url}/readyz").status_code == 200
        wait_until(lambda: state_of(store).ready)
        pids, socket = all_pids(store), Path(state_of(store).sidecar)
        assert socket.is_socket()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert (out, err) == ("", "")
    assert not any(start_time(pid) for pid in pids)
    assert read_state(store) is None
    assert not socket.parent.exists()


def test_down_stops_everything(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with up(store, APPS / "words.py"):
        pids = all_pids(store)
        assert cornstalk("down", "--store", store).stdout == f"stopped {store}\n"
        assert not any(start_time(pid) for pid in pids)
        assert not (store / "state.json").exists()


def test_a_bad_app_stops_the_start(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("app = 1\n")
    done = cornstalk("up", "--detach", "--store", tmp_path / "store", *FLAGS, bad)
    assert done.returncode == 1
    assert "bad_app" in done.stderr
    assert read_state(tmp_path / "store") is None
