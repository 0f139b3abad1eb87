"""One item's way past its engine: what was made of equal inputs before, by whatever worker of this host (issue 5).

The key names the bytes, the component with its weights and preprocessing, and the tenant. The cache is the sidecar's
(`sidecar/cache.py`): who finds something there owns its tensors like any that it made, so what becomes of the cache
later cannot hurt a request.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol, cast

from broker.lifetimes import BLOCK_GRACE
from components.engine import Call, Engine
from cornstalk.extensions import extensions
from cornstalk.messages import Ref, Upload, WorkItem, decode_value, encode
from cornstalk.task import UnitTask
from sidecar.client import Remembered, SidecarClient
from sidecar.errors import Timeout
from sidecar.messages import Owner

PATIENCE: Final = 10.0
"""Seconds to wait for another worker that makes the same: then it counts as hung, and this one makes it too."""


class Repeatable(Engine, Protocol):
    """The engine of a task that is `cached`."""

    @property
    def identity(self) -> str:
        """Names the weights and settings, once it has started. Other files under the same name have another one."""


class Recall(AbstractAsyncContextManager["Recall"]):
    """`key` is empty where equal inputs cannot be told, or need not. A worker that dies passes its turn on."""

    def __init__(self, sidecar: SidecarClient, task: UnitTask, engine: Engine, item: WorkItem, owner: Owner) -> None:
        self.key = _key(task, cast(Repeatable, engine), item) if task.cached else ""
        self._sidecar, self._owner, self._deadline = sidecar, owner, item.deadline
        self._my_turn = False

    async def __aenter__(self) -> Recall:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._my_turn:
            await self._sidecar.pass_on(self.key)

    async def find(self, call: Call) -> Remembered | None:
        """What was made before; None: make it, and say so by `remember`. Raises Cancelled, SidecarDown."""
        wait = min(PATIENCE, max(0.0, self._deadline - time.time()))
        try:
            found = await self._sidecar.recall(
                self.key, self._owner, expires=self._deadline + BLOCK_GRACE, wait=wait
            )  # fmt: skip
        except Timeout:
            return None
        self._my_turn = found is None
        return found

    async def remember(self, values: dict[str, Any], tensors: list[Ref]) -> None:
        """`values`: the plain outputs as the engine gave them."""
        if self.key:
            await self._sidecar.remember(self.key, encode(values), tensors)
            self._my_turn = False


def values_of(found: Remembered) -> dict[str, Any]:
    """The plain outputs, as they were remembered."""
    values: dict[str, Any] = decode_value(found.payload)
    return values


def _key(task: UnitTask, engine: Repeatable, item: WorkItem) -> str:
    given = {**task.defaults, **item.inputs}
    if not all(isinstance(part, Upload) for part in extensions(given)):
        return ""  # a tensor or a stream of this request
    data = encode([task.component, engine.identity, item.tenant, sorted(given.items())])
    return hashlib.blake2b(data, digest_size=20).hexdigest()
