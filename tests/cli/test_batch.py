"""`cornstalk batch` on a whole tree."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cornstalk.batch import job_id
from tests.cli.tool import argv, cornstalk, started
from tests.cli.trees import state_of, up
from tests.e2e.apps import APPS, one


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with up(tmp_path_factory.mktemp("batch"), APPS / "one.py", "--gateways", "2") as running:
        yield running


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def submitted(store: Path, file: Path, *flags: str) -> str:
    done = cornstalk("batch", "submit", file, "--app", "one", "--store", store, *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def watched(store: Path, job: str) -> str:
    done = cornstalk("batch", "status", job, "--watch", "--store", store)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_job_from_file_to_results(store: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {"text": "a"}, {"txt": "b"}, "", {"text": "c"})
    job = submitted(store, file, "--key", "whole")
    assert job == job_id("default", "one", "whole")
    assert watched(store, job) == "done: 2 done, 1 failed of 3 rows"
    done = cornstalk("batch", "results", job, "--store", store)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["row"] for row in rows] == [0, 1, 2]
    assert [row["response"] for row in rows] == [one("a"), None, one("c")]
    assert rows[1]["error"]["field"] == "txt"
    status = json.loads(cornstalk("batch", "status", job, "--json", "--store", store).stdout)
    assert (status["status"], status["done"], status["failed"]) == ("done", 2, 1)
    jobs = json.loads(cornstalk("batch", "status", "--json", "--store", store).stdout)["jobs"]
    assert [found["app"] for found in jobs if found["job"] == job] == ["one"]
    assert job in cornstalk("batch", "status", "--store", store).stdout
    assert submitted(store, file, "--key", "whole") == job, "and nothing runs again"
    assert cornstalk("batch", "results", job, "--store", store).stdout == done.stdout


def test_many_lines_go_in_several_messages(store: Path, tmp_path: Path) -> None:
    rows = [{"text": f"{i} " + "x" * 200_000, "pieces": 1} for i in range(12)]
    job = submitted(store, written(tmp_path / "long.jsonl", *rows))
    done = cornstalk("batch", "results", job, "--follow", "--store", store)
    found = {row["row"]: row["response"] for row in map(json.loads, done.stdout.splitlines())}
    assert found == {i: one(row["text"], 1) for i, row in enumerate(rows)}


def test_a_cancelled_job(store: Path, tmp_path: Path) -> None:
    job = submitted(
        store, written(tmp_path / "slow.jsonl", *[{"text": f"{i}", "service_ms": 30_000} for i in range(9)])
    )
    assert cornstalk("batch", "cancel", job, "--store", store).stdout == "cancelling\n"
    assert watched(store, job) == "cancelled: 9 cancelled of 9 rows"
    assert cornstalk("batch", "cancel", job, "--store", store).stdout == "cancelled\n"


def test_following_goes_on_when_a_gateway_dies(store: Path, tmp_path: Path) -> None:
    rows = [{"text": f"{i}", "service_ms": 40} for i in range(60)]
    job = submitted(store, written(tmp_path / "die.jsonl", *rows))
    follow = argv("batch", "results", job, "--follow", "--store", store)
    with started(follow, stderr=None, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        gateways = [p for p in state_of(store).processes if p.name.startswith("gateway") and p.pid]
        assert len(gateways) == 2
        for gateway in gateways:
            os.kill(gateway.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
        assert process.wait(60) == 0
    found = {row["row"]: row["response"] for row in map(json.loads, lines)}
    assert found == {i: one(row["text"]) for i, row in enumerate(rows)}


def test_what_is_refused_is_said(store: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {"text": "a"})
    done = cornstalk("batch", "submit", file, "--app", "nobody", "--store", store)
    assert done.returncode == 1
    assert "no app 'nobody' is deployed" in done.stderr
    done = cornstalk("batch", "submit", file, "--app", "one", "--deadline", "90000", "--store", store)
    assert (done.returncode, "deadline" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("lines", "says"),
    [(["{"], "line 1"), ([], "has 0 rows"), (['{"text": "a"}', "hello"], "line 2")],
)
def test_a_file_that_is_no_json_lines_is_told_before_anything_is_sent(
    store: Path, tmp_path: Path, lines: list[str], says: str
) -> None:
    file = written(tmp_path / "bad.jsonl", *lines)
    done = cornstalk("batch", "submit", file, "--app", "one", "--store", store)
    assert done.returncode == 2
    assert says in done.stderr


def test_an_unknown_job_and_no_tree(store: Path, tmp_path: Path) -> None:
    for command in ("status", "results", "cancel"):
        done = cornstalk("batch", command, "0" * 32, "--store", store)
        assert (done.returncode, "no job" in done.stderr) == (1, True)
    done = cornstalk("batch", "status", "--store", tmp_path / "nothing")
    assert (done.returncode, "cornstalk up" in done.stderr) == (3, True)
