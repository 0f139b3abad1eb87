"""What each stream and bucket must be. `topology.py` makes them so."""

from __future__ import annotations

from typing import Any, Final

from broker import subjects

MIB: Final = 1 << 20
SECOND: Final = 1_000_000_000

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

USAGE_DAYS: Final = 30
"""Days that the usage of requests is kept."""
BATCH_DAYS: Final = 3
"""Days that submissions and results of batch jobs are kept."""
KEPT_DECISIONS: Final = 64
"""Decisions of autoscaling that are kept for each component."""
HEARTBEAT_TTL: Final = 10.0
"""Seconds that a record in `workers` and `locks` lives without being written again."""

Config = dict[str, Any]


def core() -> list[Config]:
    """Everything that is not per component."""
    return [
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


def work_queue(component: str, max_msgs_per_lane: int, max_bytes: int) -> Config:
    """Of one component."""
    return _queue(subjects.work_stream(subjects.token(component)), subjects.work_of(component), max_bytes) | {
        "max_msgs_per_subject": max_msgs_per_lane,
        "discard_new_per_subject": True,
    }


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
        "duplicate_window": 120 * SECOND,
    }


def _queue(name: str, subject: str, max_bytes: int) -> Config:
    return {
        "name": name,
        "subjects": [subject],
        "retention": "workqueue",
        "storage": "file",
        "discard": "new",
        "max_bytes": max_bytes,
        "duplicate_window": 300 * SECOND,
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
        "max_age": 7 * 86_400 * SECOND,
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
        "max_age": USAGE_DAYS * 86_400 * SECOND,
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
        "max_age": BATCH_DAYS * 86_400 * SECOND,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "republish": {
            "src": subjects.ALL_BATCH_RESULTS,
            "dest": subjects.seen(subjects.ALL_BATCH_RESULTS),
            "headers_only": True,
        },
        "duplicate_window": 300 * SECOND,
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
        "max_age": int(ttl * SECOND),
        "duplicate_window": int(min(ttl or 120.0, 120.0) * SECOND),
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "deny_delete": True,
    }
