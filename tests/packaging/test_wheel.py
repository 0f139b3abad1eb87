"""The wheel as a stranger gets it: one top-level name, and `cornstalk up` runs from a clean environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(*argv: str | Path, cwd: Path, timeout: float = 240, **env: str) -> str:
    """stdout of a command that must succeed, outside the checkout and without its environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORNSTALK_", "PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(a) for a in argv], cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_the_only_top_level_name_is_cornstalk(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {n for n in names if not n.endswith(".dist-info")} == {"cornstalk"}


def test_the_services_ride_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for service in ("broker", "sidecar", "dispatcher", "gateway", "components"):
        assert f"cornstalk/_services/{service}/__init__.py" in names


def test_up_runs_from_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    run(home / "bin/pip", "install", "-q", "-c", ROOT / "requirements.lock", wheel, cwd=tmp_path)
    cornstalk = home / "bin/cornstalk"
    store = tmp_path / "store"
    app = ROOT / "tests/e2e/apps/one.py"
    try:
        run(cornstalk, "up", "--detach", "--store", store, "--port", "0", app, cwd=tmp_path, timeout=60)
        status = json.loads(run(cornstalk, "status", "--json", "--store", store, cwd=tmp_path))
        assert {c["kind"] for c in status["components"]} == {"null"}
        answer = run(cornstalk, "invoke", "one", "--field", "text=hello", "--json", "--store", store, cwd=tmp_path)
        assert json.loads(answer)["response"]["digest"]
    finally:
        run(cornstalk, "down", "--store", store, cwd=tmp_path, timeout=60)
