"""What stands in the registry (KV buckets): apps, components, workers. Frozen structs like messages.py, same rules."""

from __future__ import annotations

from typing import Any, Literal

from cornstalk.messages import Message


class AppRecord(Message, frozen=True, kw_only=True):
    """apps/<name> is the version new requests get; apps/<name>.<version> stays for requests that began on it."""

    name: str
    version: str  # hash of the source
    source: str
    components: tuple[str, ...] = ()
    deployed_at: float = 0.0


class ComponentRecord(Message, frozen=True, kw_only=True):
    """components/<id>: equal unit tasks of any number of apps. The operator owns `apps`, `state` and the streams."""

    id: str
    kind: str
    task: str  # "module:Class"
    identity: dict[str, Any] = {}  # fields to construct the task with
    apps: tuple[str, ...] = ()
    state: Literal["active", "draining"] = "active"
    replicas: int = 2  # worker processes a supervisor keeps running


class WorkerBeat(Message, frozen=True, kw_only=True):
    """workers/<component>.<worker>, renewed while the worker lives; the bucket's TTL removes it."""

    worker: str
    component: str
    host: str
    pid: int
    slots: int
    running: int = 0
    ready: bool = False  # weights loaded
    started_at: float = 0.0
    stats: dict[str, float] = {}  # engine: batch size of each step, longest step in seconds
