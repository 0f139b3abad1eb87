"""Model folders in the cache: complete or absent, made once, whoever makes them and whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from components import models
from cornstalk.errors import SetupError

MAKER = """
import os, sys, time
from pathlib import Path
from components import models

def build(folder):
    (folder / "weights").write_text("half")
    with open(sys.argv[2], "a") as log:
        log.write("built\\n")
    print("building", flush=True)
    sys.stdin.readline()
    (folder / "weights").write_text("whole")

print(models.prepared(Path(sys.argv[1]), build))
"""


def maker(target: Path, log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, target, log],
        cwd=Path(models.__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_at_once_make_one_folder(tmp_path: Path) -> None:
    target, log = tmp_path / "cache" / "model", tmp_path / "log"
    with maker(target, log) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "building\n"
        with maker(target, log) as second:
            assert not target.exists()
            first.communicate("go on\n", timeout=20)
            assert second.communicate(timeout=20)[0] == f"{target}\n"
    assert (target / "weights").read_text() == "whole"
    assert log.read_text() == "built\n"


def test_a_process_killed_while_it_makes_a_folder_leaves_none(tmp_path: Path) -> None:
    target, log = tmp_path / "model", tmp_path / "log"
    with maker(target, log) as doomed:
        assert doomed.stdout is not None
        doomed.stdout.readline()
        os.kill(doomed.pid, signal.SIGKILL)
    assert not target.exists()
    with maker(target, log) as next_one:
        next_one.communicate("go on\n", timeout=20)
    assert (target / "weights").read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["model"]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        models.prepared(tmp_path / "model", build)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORNSTALK_CACHE", str(tmp_path))
    assert models.cache_folder() == tmp_path
    monkeypatch.delenv("CORNSTALK_CACHE")
    assert models.cache_folder() == Path.home() / ".cache" / "cornstalk"


@pytest.mark.parametrize("find", [models.whisper, models.language_model, models.hibari])
def test_what_this_release_does_not_know_is_refused(find: object) -> None:
    with pytest.raises(SetupError, match="no-such-model"):
        find("no-such-model")  # type: ignore[operator]


@pytest.mark.models
def test_all_models_are_ready() -> None:
    assert [name for name, folder in models.prepare() if folder.is_dir()] == [
        "whisper-tiny.en",
        "smollm2-135m-instruct",
        "hibari/heart",
        "pp-ocr-v6-small",
    ]
