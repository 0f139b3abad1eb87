"""What stands in the registry (KV buckets): apps, components, workers. Frozen structs like messages.py, same rules."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from cornstalk.messages import Message


class ComponentSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a component is, as an app that uses it says: enough to make its record and its engine."""

    kind: str
    task: str  # "module:Class"
    identity: dict[str, Any] = {}  # fields to construct the task with


class AppRecord(Message, frozen=True, kw_only=True):
    """apps/<name> is the version new requests get; apps/<name>.<version> stays for requests that began on it."""

    name: str
    version: str  # hash of the source
    source: str
    components: dict[str, ComponentSpec] = {}  # by component id
    deployed_at: float = 0.0


class ComponentRecord(Message, frozen=True, kw_only=True):
    """components/<id>: equal unit tasks of any number of apps. Written by the operator alone, from the apps bucket."""

    id: str
    kind: str
    task: str  # "module:Class"
    identity: dict[str, Any] = {}
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
