"""The demo, as `make demo` runs it: real models, two workers of each, two dispatchers, one kill -9."""

from __future__ import annotations

import json

import pytest

from tests.cli.tool import cornstalk

KEYS = (
    "heard answer heard_back requests right killed_pid recovery_ms ttft_ms ttfa_ms total_ms items events tensor_bytes"
)


@pytest.mark.models
def test_a_spoken_question_is_answered_in_speech_and_a_killed_worker_harms_nobody() -> None:
    done = cornstalk("demo", "--json", within=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(found) == KEYS.split()
    assert "capital of france" in found["heard"].lower()
    assert "Paris" in found["answer"]
    assert "paris" in found["heard_back"].lower()
    assert found["requests"] == found["right"] >= 8
    assert found["killed_pid"] > 1
    assert 0 < found["recovery_ms"] < 5000
    assert 0 < found["ttft_ms"] < found["ttfa_ms"] <= found["total_ms"]
    assert found["items"] >= 8 * 4
    assert found["events"] > found["items"]
    assert found["tensor_bytes"] >= 9 * 2_304_000
