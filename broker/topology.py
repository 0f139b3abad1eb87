"""Streams, consumers and buckets. One owner makes them what they must be; everybody else only binds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from broker import subjects
from broker.connection import Broker
from broker.errors import Rejected, TopologyError
from broker.refusals import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from broker.streams import SECOND, WORK_BYTES, Config, core, work_queue
from broker.subjects import LANES

DISPATCH_ACK_WAIT: Final = 2.0
ACK_WAIT: Final = 15.0
"""Seconds until an item of a lost node is delivered again; a worker says in-progress at a third of it."""


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
    for stream in core():
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
    await _ensure_stream(broker, work_queue(component, max_msgs_per_lane, max_bytes), copies)
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
        "ack_wait": int(ack_wait * SECOND),
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
