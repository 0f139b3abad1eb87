"""What stands in the registry (KV buckets): apps, components, workers. Frozen structs like messages.py, same rules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from cornstalk.messages import Message


class ComponentSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a component is, as an app that uses it says: enough to make its record and its engine."""

    kind: str
    task: str  # "module:Class"
    identity: dict[str, Any] = {}  # fields to construct the task with


class AppRecord(Message, frozen=True, kw_only=True):
    """apps/<name> is the version new requests get; apps/<name>.<version> stays for requests that began on it.

    Written by gateways; the operator marks versions that were replaced, and removes them when nothing can need them.
    """

    name: str
    version: str  # hash of the source
    source: str
    components: dict[str, ComponentSpec] = {}  # by component id
    deployed_at: float = 0.0
    quarantined: str = ""  # line of a pass that did not come back: nobody runs it until it is deployed again
    retired_at: float = 0.0  # of a version: since when new requests get another one; 0: they get this one


class ComponentRecord(Message, frozen=True, kw_only=True):
    """components/<id>: equal unit tasks of any number of apps. Written by the operator alone, from the apps bucket."""

    id: str
    kind: str
    task: str  # "module:Class"
    identity: dict[str, Any] = {}
    apps: tuple[str, ...] = ()
    state: Literal["active", "draining"] = "active"
    replicas: int = 2  # worker processes a supervisor keeps running
    autoscaled: bool = False  # `replicas` follows the load; the reason stands in decisions/<id>


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


Workers = Annotated[int, Meta(ge=0, le=1_000)]
Items = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[int, Meta(ge=0, le=3_600)]  # the most that the HPA takes as a window


class ScalePolicy(Message, frozen=True, kw_only=True):
    """autoscale/<component>: a ScaledObject of KEDA under short names. Written by gateways, read by the operator.

    The defaults are KEDA's and the HPA's, except `min`, which is 0 there, and `max`, 100.
    """

    min: Workers = 1  # minReplicaCount
    max: Workers = 0  # maxReplicaCount; 0: one for each CPU of the operator's machine, at least 2
    target: Items = 0  # lagThreshold: items waiting and running for each worker; 0: the slots of its engine
    activation: Items = 0  # activationLagThreshold: more items than that wake a component from zero
    cooldown: Seconds = 300  # cooldownPeriod: without more items than that, before the last worker goes, if `min` is 0
    window: Seconds = 300  # scaleDown.stabilizationWindowSeconds: the highest number asked for within it holds


Rule = Literal["target", "tolerance", "window", "rate", "max", "min", "cooldown", "idle", "start", "zero", "slots"]
"""What settled a decision: dispatcher/autoscale.py says what each means."""


class ScaleDecision(Message, frozen=True, kw_only=True):
    """decisions/<component>, the newest 64: how many workers there shall be, and why. Written by the operator."""

    component: str
    at: float
    before: int  # workers that were wanted until then
    replicas: int  # workers that are wanted now
    asked: int  # what the items ask for, before window, rate and limits
    rule: Rule
    why: str  # a sentence with the figures
    pending: dict[str, int]  # by lane, as in_flight
    in_flight: dict[str, int]
    policy: ScalePolicy  # as it was then, `max` and `target` filled in
