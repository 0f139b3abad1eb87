"""Streams, consumers and buckets: what they must be. One owner creates them; everybody else only binds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from broker import subjects
from broker.connection import Broker
from broker.errors import Rejected, TopologyError
from broker.refusals import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from broker.subjects import LANES

MIB: Final = 1 << 20
_SECOND: Final = 1_000_000_000

RUNS_MESSAGES: Final = 200_000
"""Facts at once, each at a subject of its own: beyond, the server's reads get slow (design rule 8)."""
RUNS_BYTES: Final = 256 * MIB
CHUNKS_BYTES: Final = 512 * MIB
UPLOADS_BYTES: Final = 512 * MIB
DRIVE_BYTES: Final = 64 * MIB
DLQ_BYTES: Final = 64 * MIB
USAGE_BYTES: Final = 64 * MIB
BATCH_BYTES: Final = 256 * MIB
WORK_BYTES: Final = 64 * MIB
BUCKET_BYTES: Final = 16 * MIB
"""JetStream reserves these of the server's max_file (4 GiB when embedded): room for 35 components beside the core."""

DISPATCH_ACK_WAIT: Final = 2.0
ACK_WAIT: Final = 15.0
"""Seconds until an item of a lost node is delivered again; a worker says in-progress at a third of it."""

USAGE_DAYS: Final = 30
"""Days that the usage of requests is kept."""
BATCH_DAYS: Final = 3
"""Days that submissions and results of batch jobs are kept."""
KEPT_DECISIONS: Final = 64
"""Decisions of autoscaling that are kept for each component."""
HEARTBEAT_TTL: Final = 10.0
"""Seconds that a record in `workers` and `locks` lives without being written again."""

Config = dict[str, Any]


class Backlog(NamedTuple):
    """Load of a component, by lane. Waiting and running items of both lanes are the scaling signal."""

    pending: dict[str, int]
    in_flight: dict[str, int]
    max_msgs: int  # items a lane may hold
    ended: dict[str, int] = {}  # deliveries that are over, since the queue was made: their growth is its throughput


async def ensure_core(broker: Broker, *, drive_ack_wait: float = ACK_WAIT, copies: int = 1) -> None:
    """Creates or updates everything that is not per component. Idempotent. Raises TopologyError.

    `copies`: servers that hold each stream, 1, 3 or 5.
    """
    streams = [
        _log(subjects.RUNS, subjects.ALL_FACTS, RUNS_BYTES) | {"max_msgs": RUNS_MESSAGES},
        _log(subjects.CHUNKS, subjects.ALL_CHUNKS, CHUNKS_BYTES),
        _queue(subjects.DRIVE, subjects.ALL_DRIVE, DRIVE_BYTES),
        _spool(),
        _dead_letters(),
        _batch(),
        _usage(),
        *(_bucket(bucket) for bucket in (subjects.APPS, subjects.COMPONENTS, subjects.AUTOSCALE)),
        *(_bucket(bucket, ttl=HEARTBEAT_TTL) for bucket in (subjects.WORKERS, subjects.LOCKS)),
        _bucket(subjects.DECISIONS, history=KEPT_DECISIONS),
    ]
    for stream in streams:
        await _ensure_stream(broker, stream, copies)
    await _ensure_consumer(broker, subjects.RUNS, subjects.DISPATCH, DISPATCH_ACK_WAIT)
    await _ensure_consumer(broker, subjects.DRIVE, "drive", drive_ack_wait)
    submits = subjects.ALL_BATCH_SUBMITS
    await _ensure_consumer(broker, subjects.BATCH, "batch", drive_ack_wait, submits, headers_only=True)


async def ensure_component(
    broker: Broker,
    component: str,
    *,
    max_msgs_per_lane: int = 10_000,
    max_bytes: int = WORK_BYTES,
    ack_wait: float = ACK_WAIT,
    copies: int = 1,
) -> None:
    """Creates or updates the work queue of a component and its two consumers. Idempotent. Raises TopologyError.

    `copies` as of `ensure_core`.
    """
    stream = subjects.work_stream(subjects.token(component))
    await _ensure_stream(
        broker,
        _queue(stream, subjects.work_of(component), max_bytes)
        | {"max_msgs_per_subject": max_msgs_per_lane, "discard_new_per_subject": True},
        copies,
    )
    for lane in LANES:
        await _ensure_consumer(broker, stream, lane, ack_wait, subjects.work(component, lane))


async def close_component(broker: Broker, component: str) -> None:
    """The work queue takes nothing any more, as if it were gone; what it holds is still delivered. `ensure_component`
    opens it again. Idempotent, also when there is none.
    """
    stream = subjects.work_stream(subjects.token(component))
    try:
        config = (await broker.api(f"STREAM.INFO.{stream}"))["config"]
        await broker.api(f"STREAM.UPDATE.{stream}", {**config, "subjects": [subjects.closed_work(component)]})
    except Rejected as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def remove_component(broker: Broker, component: str) -> None:
    """Deletes the work queue with all that waits in it. Idempotent."""
    try:
        await broker.api(f"STREAM.DELETE.{subjects.work_stream(subjects.token(component))}")
    except Rejected as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise


async def components(broker: Broker) -> list[str]:
    """Every component that has a work queue."""
    prefix = subjects.work_stream("")
    names: list[str] = []
    while True:
        reply = await broker.api("STREAM.NAMES", {"offset": len(names)})
        names += reply.get("streams") or []
        if len(names) >= reply["total"]:
            return sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))


async def backlog(broker: Broker, component: str) -> Backlog:
    """Items waiting and running in both lanes. Raises ReadTimeout, Rejected (no such component)."""
    stream = subjects.work_stream(component)
    pending, in_flight, ended = {}, {}, {}
    for lane in LANES:
        info = await broker.api(f"CONSUMER.INFO.{stream}.{lane}")
        pending[lane], in_flight[lane] = info["num_pending"], info["num_ack_pending"]
        ended[lane] = info["delivered"]["consumer_seq"] - info["num_ack_pending"]
    config = (await broker.api(f"STREAM.INFO.{stream}"))["config"]
    return Backlog(pending, in_flight, config["max_msgs_per_subject"], ended)


async def share_in_use(broker: Broker, stream: str) -> float:
    """How much of its max_bytes a stream holds, or of its max_msgs if that is more, 0 to 1.

    Raises ReadTimeout, Rejected.
    """
    info = await broker.api(f"STREAM.INFO.{stream}")
    state, config = info["state"], info["config"]
    of_messages = state["messages"] / config["max_msgs"] if config["max_msgs"] > 0 else 0.0
    return float(max(state["bytes"] / config["max_bytes"], of_messages))


def _log(name: str, subject: str, max_bytes: int) -> Config:
    return {
        "name": name,
        "subjects": [subject],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "republish": {"src": subject, "dest": subjects.seen(subject)},
        "duplicate_window": 120 * _SECOND,
    }


def _queue(name: str, subject: str, max_bytes: int) -> Config:
    return {
        "name": name,
        "subjects": [subject],
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "duplicate_window": 300 * _SECOND,
    }


def _spool() -> Config:
    return {
        "name": subjects.UPLOADS,
        "subjects": [subjects.ALL_UPLOADS],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": UPLOADS_BYTES,
        "max_msgs_per_subject": 1,
        "allow_direct": True,
        "allow_msg_ttl": True,
    }


def _dead_letters() -> Config:
    return {
        "name": subjects.DLQ,
        "subjects": [subjects.ALL_DEAD_LETTERS],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": DLQ_BYTES,
        "max_age": 7 * 86_400 * _SECOND,
        "allow_direct": True,
    }


def _usage() -> Config:
    """The oldest records go first: a request must end also when nobody has read them."""
    return {
        "name": subjects.USAGE,
        "subjects": [subjects.ALL_USAGE],
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "max_bytes": USAGE_BYTES,
        "max_age": USAGE_DAYS * 86_400 * _SECOND,
        "allow_direct": True,
    }


def _batch() -> Config:
    return {
        "name": subjects.BATCH,
        "subjects": [subjects.ALL_BATCH_SUBMITS, subjects.ALL_BATCH_RESULTS],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": BATCH_BYTES,
        "max_age": BATCH_DAYS * 86_400 * _SECOND,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "republish": {
            "src": subjects.ALL_BATCH_RESULTS,
            "dest": subjects.seen(subjects.ALL_BATCH_RESULTS),
            "headers_only": True,
        },
        "duplicate_window": 300 * _SECOND,
    }


def _bucket(bucket: str, *, ttl: float = 0.0, history: int = 1) -> Config:
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "retention": "limits",
        "storage": "file",
        "discard": "new",
        "max_bytes": BUCKET_BYTES,
        "max_msgs_per_subject": history,
        "max_age": int(ttl * _SECOND),
        "duplicate_window": int(min(ttl or 120.0, 120.0) * _SECOND),
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
    }


async def _ensure_stream(broker: Broker, settings: Config, copies: int) -> None:
    name, config = settings["name"], settings | {"num_replicas": copies}
    try:
        echoed = (await broker.api(f"STREAM.INFO.{name}"))["config"]
        if not _differences(config, echoed):
            return
        verb = "STREAM.UPDATE"
    except Rejected as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        verb, echoed = "STREAM.CREATE", {}
    try:
        echoed = (await broker.api(f"{verb}.{name}", {**echoed, **config}))["config"]
    except Rejected as error:
        raise TopologyError(f"stream {name}: {error}") from error
    _refuse(f"stream {name}", _differences(config, echoed))


async def _ensure_consumer(
    broker: Broker, stream: str, name: str, ack_wait: float, filter_subject: str = "", *, headers_only: bool = False
) -> None:
    config: Config = {
        "durable_name": name,
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ack_wait * _SECOND),
        "max_deliver": -1,
        "max_ack_pending": 4096,
        "max_waiting": 512,
        "headers_only": headers_only,
    }
    if filter_subject:
        config["filter_subject"] = filter_subject
    try:
        if not _differences(config, (await broker.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]):
            return
    except Rejected as error:
        if error.err_code != CONSUMER_NOT_FOUND:
            raise
    request = {"stream_name": stream, "config": config}
    try:
        echoed = (await broker.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", request))["config"]
    except Rejected as error:
        raise TopologyError(f"consumer {stream}.{name}: {error}") from error
    _refuse(f"consumer {stream}.{name}", _differences(config, echoed))


def _differences(wanted: Config, echoed: Config) -> list[str]:
    """Settings the server does not have; it leaves zeros out of what it echoes."""
    return [key for key, value in wanted.items() if echoed.get(key, type(value)()) != value]


def _refuse(what: str, differences: Iterable[str]) -> None:
    if names := ", ".join(differences):
        raise TopologyError(f"{what}: the server did not take {names}")
