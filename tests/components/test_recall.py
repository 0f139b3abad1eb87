"""What makes two items equal to the cache, and what never does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel

from components.fingerprint import fingerprint
from components.null import NullEngine
from components.recall import Recall
from cornstalk.messages import Ref, Upload, WorkItem
from cornstalk.task import UnitTask
from cornstalk.tasks.null import NullCached, NullTensor
from cornstalk.types import Stream
from sidecar.client import SidecarClient
from sidecar.messages import Owner

TASK = NullCached(name="eye")
FILE = Upload("d" * 64, 10, "image/png")
ITEM = WorkItem(
    request="r", node="n", gen=0, component=TASK.component, lane="interactive", tenant="t", deadline=1e9, seed=1,
    inputs={"upload": FILE, "nbytes": 9},
)  # fmt: skip


def key(item: WorkItem, task: UnitTask = TASK, identity: str = "weights") -> str:
    engine = NullEngine(task)
    engine.identity = identity
    return Recall(SidecarClient("", "", 0, 0), task, engine, item, Owner("r", "n", 0, "a")).key


def test_equal_inputs_are_equal_whichever_request_and_seed_they_have() -> None:
    other = msgspec.structs.replace(ITEM, request="another", node="m", gen=3, seed=9, deadline=2e9, lane="batch")
    reordered = msgspec.structs.replace(ITEM, inputs=dict(reversed(ITEM.inputs.items())))
    spelled_out = msgspec.structs.replace(ITEM, inputs={**ITEM.inputs, "text": ""})
    assert key(ITEM) == key(other) == key(reordered) == key(spelled_out) != ""


@pytest.mark.parametrize(
    "changes",
    [
        {"tenant": "another"},
        {"inputs": {"upload": Upload("e" * 64, 10, "image/png"), "nbytes": 9}},
        {"inputs": {"upload": FILE, "nbytes": 8}},
        {"inputs": {"upload": FILE, "nbytes": 9, "text": "x"}},
        {"inputs": {"nbytes": 9}},
    ],
)
def test_another_tenant_or_input_is_another_key(changes: dict[str, Any]) -> None:
    assert key(ITEM) != key(msgspec.structs.replace(ITEM, **changes)) != ""


def test_another_component_or_other_weights_are_another_key() -> None:
    assert len({key(ITEM), key(ITEM, NullCached(name="other")), key(ITEM, identity="newer")}) == 3


def test_tensors_of_a_request_and_tasks_that_are_not_cached_have_no_key() -> None:
    ref = Ref("r", "n", 0, "a", "out", 0, "h", "e", 1, 0, 16, "uint8", (16,))
    assert key(msgspec.structs.replace(ITEM, inputs={"upload": FILE, "tensors": [ref]})) == ""
    assert key(ITEM, NullTensor(name="eye")) == ""


def test_a_cached_task_has_no_streams() -> None:
    with pytest.raises(TypeError, match="'text' is one"):

        class Wrong(UnitTask):
            cached: ClassVar[bool] = True

            class Out(BaseModel):
                text: Stream[str]

            def __call__(self, *, text: str) -> Out:
                raise NotImplementedError


def test_a_fingerprint_follows_the_files(tmp_path: Path) -> None:
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"1234")
    first = fingerprint([weights.parent])
    assert fingerprint([weights.parent]) == first
    (weights.parent / "preprocessor_config.json").write_text("{}")
    second = fingerprint([weights.parent])
    weights.write_bytes(b"4321")
    os.utime(weights, ns=(1, 1))
    assert len({first, second, fingerprint([weights.parent])}) == 3
