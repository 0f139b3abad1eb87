"""Every subject, stream, bucket and header name, spelled once. Who publishes and who consumes stands with each.

Tokens (request, node, component, app, output, attempt) are `[A-Za-z0-9_-]+`; `token()` refuses anything else, so that
user data can never address another subject.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

RUNS: Final = "RUNS"
"""Stream of all facts of all requests."""
CHUNKS: Final = "CHUNKS"
"""Stream of all pieces of stream outputs."""
DRIVE: Final = "DRIVE"
"""Work queue of durable requests; gateways compete for it."""
UPLOADS: Final = "UPLOADS"
"""Spool of uploaded bytes, content-addressed."""
DLQ: Final = "DLQ"
"""Dead letters, kept 7 days."""
USAGE: Final = "USAGE"
"""What requests used, kept 30 days."""
BATCH: Final = "BATCH"
"""Batch jobs: what clients submit, and what came of each row. Gateways compete for the submissions."""
DISPATCH: Final = "dispatch"
"""Durable consumer of RUNS, shared by all dispatchers."""
SEEN: Final = "seen"
"""First token of what RUNS and CHUNKS republish once it is stored."""

APPS: Final = "apps"
"""KV bucket: `<app>` the current record, `<app>.<version>` each version. Gateways write and read."""
COMPONENTS: Final = "components"
"""KV bucket: one record per component. Gateways write (deploy), operator, supervisors and workers read."""
WORKERS: Final = "workers"
"""KV bucket with TTL: `<component>.<worker>` heartbeats. Workers write; status reads."""
AUTOSCALE: Final = "autoscale"
"""KV bucket: one policy per component whose settings differ from the defaults. Gateways write; the operator reads."""
DECISIONS: Final = "decisions"
"""KV bucket with history: how many workers each component shall have, and why. The operator writes; gateways read."""
LOCKS: Final = "locks"
"""KV bucket with TTL: `operator`."""

MSG_ID: Final = "Nats-Msg-Id"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
TTL: Final = "Nats-TTL"
ROLLUP: Final = "Nats-Rollup"
"""`sub`: the message takes the place of all before it on its subject."""
TRACEPARENT: Final = "traceparent"
DEADLINE: Final = "Cornstalk-Deadline"
LANE: Final = "Cornstalk-Lane"
TENANT: Final = "Cornstalk-Tenant"
ROW_STATUS: Final = "Cornstalk-Status"
"""Of the result of a row: how it ended."""
ROW_USAGE: Final = "Cornstalk-Usage"
"""Of the result of a row: what it consumed, as JSON."""

LANES: Final = ("interactive", "batch")

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


def token(text: str) -> str:
    """`text` itself if it may stand between two dots; raises ValueError else."""
    if not _TOKEN.match(text):
        raise ValueError(f"not a subject token: {text[:40]!r} (letters, digits, '-' and '_', at most 128)")
    return text


def accepted(request: str) -> str:
    """Gateway -> dispatcher, gateways."""
    return f"run.{request}.accepted"


def graph(request: str, index: int) -> str:
    """Driver -> dispatcher, drivers."""
    return f"run.{request}.graph.{index}"


def end(request: str, node: str, gen: int) -> str:
    """Worker or dispatcher -> dispatcher, driver. One subject for every outcome, so that the fence holds."""
    return f"run.{request}.node.{node}.{gen}.end"


def first(request: str, node: str, gen: int, output: str) -> str:
    """Worker -> dispatcher, driver."""
    return f"run.{request}.node.{node}.{gen}.first.{output}"


def attempt(request: str, node: str, gen: int, attempt_id: str) -> str:
    """Worker -> workers: a suspect is about to start."""
    return f"run.{request}.node.{node}.{gen}.try.{attempt_id}"


def attempts(request: str, node: str, gen: int) -> str:
    """Filter of all try marks of one generation."""
    return f"run.{request}.node.{node}.{gen}.try.*"


def cancel(request: str) -> str:
    """Gateway -> dispatcher, driver, workers."""
    return f"run.{request}.cancel"


def finish(request: str) -> str:
    """Driver or dispatcher -> gateways, dispatcher. Stays as tombstone after the purge."""
    return f"run.{request}.end"


def facts_of(request: str) -> str:
    """Filter of all facts of a request."""
    return f"run.{request}.>"


def purgeable(request: str) -> tuple[str, str]:
    """Filters in RUNS that a purge removes: all but cancel and the tombstone `run.<r>.end`."""
    return f"run.{request}.*.>", f"run.{request}.accepted"


ALL_FACTS: Final = "run.>"
ALL_ACCEPTED: Final = "run.*.accepted"
ALL_FINISHES: Final = "run.*.end"
ALL_CHUNKS: Final = "chunk.>"


def chunk(request: str, node: str, gen: int, output: str) -> str:
    """Worker -> readers (gateways, workers with stream inputs)."""
    return f"chunk.{request}.{node}.{gen}.{output}"


def chunks_of(request: str) -> str:
    """Filter of all chunks of a request."""
    return f"chunk.{request}.>"


def seen(subject: str) -> str:
    """Where a stored message of `subject` is republished: a wake-up, never the truth."""
    return f"{SEEN}.{subject}"


def stored_subject(subject: str) -> str:
    """Of a republished message: where it is stored."""
    return subject[len(SEEN) + 1 :]


def work_stream(component: str) -> str:
    return f"WORK_{component}"


def work(component: str, lane: str) -> str:
    """Driver or dispatcher -> workers of the component."""
    return f"work.{component}.{lane}"


def work_of(component: str) -> str:
    """Filter of both lanes of a component."""
    return f"work.{component}.*"


def closed_work(component: str) -> str:
    """What a queue takes instead while it is closed: nobody publishes to it."""
    return f"closed.{component}"


def drive(app: str) -> str:
    """Gateway -> gateways: a durable request to be driven."""
    return f"drive.{app}"


ALL_DRIVE: Final = "drive.*"


def upload(digest: str, part: int) -> str:
    """Gateway -> workers: part 0 is the manifest, 1.. the bytes."""
    return f"upload.{digest}.{part}"


def upload_parts(digest: str) -> str:
    return f"upload.{digest}.*"


def upload_under_way(digest: str, part: int) -> str:
    """Gateway -> gateways: a part, from 1 on, of an upload whose digest is claimed and not yet checked."""
    return f"upload.under-way-{digest}.{part}"


def parts_under_way(digest: str) -> str:
    return f"upload.under-way-{digest}.*"


ALL_UPLOADS: Final = "upload.*.*"


def dead_letter(component: str, reason: str, request: str, node: str, gen: int) -> str:
    """Worker -> operators of the system."""
    return f"dlq.{component}.{reason}.{request}.{node}.{gen}"


ALL_DEAD_LETTERS: Final = "dlq.>"


def usage(app: str, request: str) -> str:
    """Dispatcher -> who accounts for it: what a request used."""
    return f"usage.{token(app)}.{token(request)}"


ALL_USAGE: Final = "usage.>"


def batch_submit(app: str) -> str:
    """Client -> gateways: rows of a batch job."""
    return f"batch.submit.{app}"


ALL_BATCH_SUBMITS: Final = "batch.submit.*"


def batch_result(job: str, row: int) -> str:
    """Gateway -> clients: how a row ended. Stored once."""
    return f"batch.result.{job}.{row}"


def batch_result_part(job: str, row: int, digest: str, part: int) -> str:
    """Gateway -> clients: bytes of a response that does not fit into its result."""
    return f"batch.result.{job}.{row}.{digest}.{part}"


def batch_word(job: str, word: str) -> str:
    """`progress`, `summary` and `refused`: gateway -> clients. `cancel`: client -> gateways. No row has such a name."""
    return f"batch.result.{job}.{word}"


def batch_results(job: str) -> str:
    """Filter of what clients read of a job: its rows and the words above."""
    return f"batch.result.{job}.*"


def batch_unreadable(seq: int) -> str:
    """Gateway -> clients: the message with this sequence in BATCH does not say which job it is for."""
    return f"batch.result.unreadable.{seq}"


def batch_job(job: str, fact: int | str) -> str:
    """Gateway -> gateways: by its first row, a message that was taken; `begun`: all of them were."""
    return f"batch.result.{job}.job.{fact}"


def batch_job_facts(job: str) -> str:
    """Filter of these."""
    return f"batch.result.{job}.job.*"


ALL_BATCH_BEGUN: Final = "batch.result.*.job.begun"
ALL_BATCH_RESULTS: Final = "batch.result.>"


def batch_hint(app: str) -> str:
    """Gateway -> gateways, core: rows of a job of the app wait here, of this priority. A hint: order, not truth."""
    return f"ctl.batch.{app}"


ALL_BATCH_HINTS: Final = "ctl.batch.*"


def cancel_hint(request: str) -> str:
    """Gateway, dispatcher -> workers, core: look at the stored cancel or end now. A hint; the fact is the truth."""
    return f"ctl.cancel.{request}"


ALL_CANCEL_HINTS: Final = "ctl.cancel.*"


def attach_hint(request: str) -> str:
    """Gateway -> gateways, core: a client listens to the request, so nobody cancels it for having been left."""
    return f"ctl.attach.{request}"


def attach_probe(request: str) -> str:
    """Gateway -> gateways, core: who has a client that listens to the request says so by `attach_hint`."""
    return f"ctl.attached.{request}"


ALL_ATTACH_PROBES: Final = "ctl.attached.*"


def drive_probe(request: str) -> str:
    """Gateway -> gateways, core, a question: who drives the request answers. Nobody does while its drive item waits."""
    return f"ctl.drives.{request}"


ALL_DRIVE_PROBES: Final = "ctl.drives.*"


def release_hint(host: str) -> str:
    """Dispatcher -> the sidecar of a host, core: blocks nobody needs any more. A hint; their TTL is the truth."""
    return f"ctl.release.{host}"


QUEUE_HINT: Final = "ctl.queue"
"""Dispatcher -> operator, core: a request that began on the app version with this key of APPS finds no queue."""


def held_by(stream: str, consumer: str) -> str:
    """Competitors of a consumer, core: each answers with the stream sequences of the deliveries that it has."""
    return f"ctl.held.{stream}.{consumer}"


def worker_died(component: str) -> str:
    """A sidecar -> the workers of the component, core: another one has died, and deliveries may have gone to it."""
    return f"ctl.died.{component}"


DISPATCH_BEAT: Final = "ctl.dispatch.beat"
"""Dispatchers -> dispatchers, core: the active one is alive (soft leader, for speed only)."""


def dispatcher_at(id: str) -> str:
    """Standbys -> the active dispatcher, core: nobody answers, but the server says when nobody listens any more."""
    return f"ctl.dispatch.at.{id}"


SIDECAR_SHARE: Final = "ctl.sidecar.share"
"""Sidecars -> gateways, core: free share of their arenas, for admission."""


class RunKey(NamedTuple):
    """A subject under `run.`, taken apart."""

    request: str
    kind: str  # accepted | graph | first | try | node-end | cancel | end
    node: str = ""
    gen: int = 0
    rest: str = ""  # pass index, output or attempt


def parse_run(subject: str) -> RunKey:
    """Inverse of the functions above, with or without `seen.`. Raises ValueError for any other subject."""
    parts = subject.split(".")
    if parts[0] == SEEN:
        del parts[0]
    match parts:
        case ["run", request, ("accepted" | "cancel" | "end") as kind]:
            return RunKey(request, kind)
        case ["run", request, "graph", index]:
            return RunKey(request, "graph", rest=index)
        case ["run", request, "node", node, gen, "end"]:
            return RunKey(request, "node-end", node, int(gen))
        case ["run", request, "node", node, gen, ("first" | "try") as kind, rest]:
            return RunKey(request, kind, node, int(gen), rest)
    raise ValueError(f"not a fact of a request: {subject!r}")
