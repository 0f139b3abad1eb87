"""Batch jobs from a client that has a NATS library: rows, results, progress, summary, cancel, deadline, priority."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import pytest

from broker.facts import Facts
from broker.reads import pages
from broker.subjects import BATCH, accepted, batch_results
from cornstalk.batch import row_request
from tests.batch.client import Client, Heard, decoded, job_id
from tests.e2e.apps import mixed, one
from tests.faults.stored import queues_empty
from tests.gateway.sound import data_url, wav
from tests.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


def texts(key: str, count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"{key} {i}", **more} for i in range(count)]


def check(heard: Heard, key: str, count: int) -> None:
    """Every row is there, and right."""
    assert sorted(heard.rows) == list(range(count))
    for i, row in heard.rows.items():
        assert (row["status"], row["response"]) == ("done", one(f"{key} {i}")), row


async def test_many_rows_in_one_message(client: Client) -> None:
    await client.submit("one", idempotency_key="many", rows=texts("many", 40))
    heard = await client.hear(job := job_id("one", "many"))
    check(heard, "many", 40)
    summary = heard.word("summary")
    assert summary is not None
    assert (summary["job"], summary["status"], summary["rows"], summary["done"]) == (job, "done", 40, 40)
    assert (summary["failed"], summary["cancelled"], summary["expired"]) == (0, 0, 0)
    used = sum(row["usage"]["run_s"] for row in heard.rows.values())
    assert 0 < used == pytest.approx(summary["usage"]["run_s"])
    assert summary["times"]["begun"] <= summary["times"]["ended"]
    progress = [body for word, body in heard.words if word == "progress"]
    assert progress, "and it was told on the way"
    assert all(p["rows"] == 40 for p in progress)


async def test_results_are_replayed_to_whoever_asks_later(client: Client) -> None:
    await client.submit("one", idempotency_key="replay", rows=texts("replay", 10))
    job = job_id("one", "replay")
    first, again = await client.hear(job), await client.hear(job)
    check(again, "replay", 10)
    assert again.rows == first.rows
    assert again.word("summary") == first.word("summary")
    assert len([word for word, _ in again.words if word == "progress"]) == 1, "of progress the newest is kept"


async def test_one_row_in_msgpack_is_answered_in_msgpack(client: Client) -> None:
    sound = wav()
    row = {"text": "packed", "sound": sound, "files": [b"\x00\xff" * 100]}
    await client.submit("mixed", as_json=False, idempotency_key="packed", row=row)
    heard = await client.hear(job_id("mixed", "packed"))
    assert heard.rows[0]["response"] == mixed("packed", sound, [b"\x00\xff" * 100])
    message = await client.js.get_last_msg(BATCH, f"batch.result.{job_id('mixed', 'packed')}.0")
    assert message.data[:1] != b"{"


async def test_files_in_json_are_data_urls_or_base64(client: Client) -> None:
    sound = wav()
    rows = [
        {"text": "url", "sound": data_url(sound)},
        {"text": "base64", "sound": base64.b64encode(sound).decode()},
        {"text": "no sound", "sound": base64.b64encode(b"\x00\xff" * 100).decode()},
    ]
    await client.submit("mixed", idempotency_key="files", rows=rows)
    heard = await client.hear(job_id("mixed", "files"))
    assert heard.rows[0]["response"] == mixed("url", sound)
    assert heard.rows[1]["response"] == mixed("base64", sound)
    assert (heard.rows[2]["error"]["code"], heard.rows[2]["error"]["field"]) == ("unsupported_media", "sound")


async def test_rows_that_cannot_be_meant_fail_alone(client: Client) -> None:
    bad = [{"txt": "x"}, {}, {"text": 7}, "hello", 3, None, [], {"text": "x", "pieces": "many"}]
    rows = [row for i, wrong in enumerate(bad) for row in ({"text": f"alone {i}"}, wrong)]
    await client.submit("one", idempotency_key="alone", rows=rows)
    heard = await client.hear(job_id("one", "alone"))
    for i in range(len(bad)):
        assert heard.rows[2 * i]["response"] == one(f"alone {i}")
        error = heard.rows[2 * i + 1]["error"]
        assert (heard.rows[2 * i + 1]["status"], error["code"]) == ("failed", "bad_input")
    assert heard.rows[1]["error"]["field"] == "txt"
    assert heard.rows[15]["error"]["field"] == "pieces"
    summary = heard.word("summary")
    assert summary is not None
    assert (summary["status"], summary["done"], summary["failed"]) == ("done", len(bad), len(bad))


async def test_a_task_that_fails_is_the_failure_of_its_row(client: Client) -> None:
    rows = [{"text": "good"}, {"text": "bad", "fail": "raise"}]
    await client.submit("one", as_json=False, idempotency_key="task", rows=rows)
    heard = await client.hear(job_id("one", "task"))
    assert heard.rows[0]["response"] == one("good")
    assert (heard.rows[1]["status"], heard.rows[1]["error"]["code"]) == ("failed", "asked_to_fail")
    assert "null-value" in heard.rows[1]["error"]["component"]


async def test_a_job_in_several_messages_in_any_order(client: Client) -> None:
    rows = texts("parts", 30)
    await client.submit("one", idempotency_key="parts", rows=rows[20:30], first=20, last=False)
    await client.submit("one", idempotency_key="parts", rows=[], first=30)
    await client.submit("one", as_json=False, idempotency_key="parts", rows=rows[:15], last=False)
    await client.submit("one", idempotency_key="parts", rows=rows[15:20], first=15, last=False)
    check(await client.hear(job_id("one", "parts")), "parts", 30)


async def test_nothing_of_a_job_runs_before_its_last_message(stack: Stack, client: Client) -> None:
    rows = texts("begin", 6)
    job = job_id("one", "begin")
    await client.submit("one", idempotency_key="begin", rows=rows[:3], last=False)
    await client.submit("one", idempotency_key="other", rows=texts("other", 5))
    check(await client.hear(job_id("one", "other")), "other", 5)
    assert await Facts(stack.broker).last(accepted(row_request(job, 0))) is None
    await client.submit("one", idempotency_key="begin", rows=rows[3:], first=3)
    check(await client.hear(job), "begin", 6)


async def test_the_same_submission_twice_is_one_job(stack: Stack, client: Client) -> None:
    body = {"idempotency_key": "twice", "rows": texts("twice", 12, service_ms=20)}
    await client.submit("one", **body)
    await client.submit("one", **body)
    heard = await client.hear(job_id("one", "twice"))
    check(heard, "twice", 12)
    await client.submit("one", **body)
    await nothing_submitted(stack)
    again = await client.hear(job_id("one", "twice"))
    assert (again.rows, again.word("refused")) == (heard.rows, None)


async def test_the_same_key_with_other_rows_is_refused_and_harms_nothing(client: Client) -> None:
    await client.submit("one", idempotency_key="taken", rows=texts("taken", 8, service_ms=50))
    job = job_id("one", "taken")
    await client.hear(job, until="progress")
    seq = await client.submit("one", idempotency_key="taken", rows=texts("else", 8))
    refused = (await client.hear(job, until="refused")).word("refused")
    assert refused is not None
    assert (refused["seq"], refused["error"]["field"]) == (seq, "idempotency_key")
    check(await client.hear(job), "taken", 8)
    late = await client.submit("one", idempotency_key="taken", rows=texts("taken", 8), first=8)

    async def refused_too() -> bool:
        stored = await _stored(client, f"batch.result.{job}.refused")
        return [decoded(message.data)["seq"] for message in stored] == [seq, late]

    await eventually(refused_too, within=10)


async def test_tenants_have_keys_of_their_own(client: Client) -> None:
    await client.submit("one", idempotency_key="mine", rows=texts("mine", 2))
    await client.submit("one", idempotency_key="mine", rows=texts("yours", 2), tenant="other")
    check(await client.hear(job_id("one", "mine")), "mine", 2)
    check(await client.hear(job_id("one", "mine", "other")), "yours", 2)


@pytest.mark.parametrize(
    ("app", "body", "code", "field"),
    [
        ("one", {"rows": [{"text": "a"}], "prio": 1}, "bad_input", None),
        ("one", {"rows": {"text": "a"}}, "bad_input", "rows"),
        ("one", {}, "bad_input", "rows"),
        ("one", {"rows": []}, "bad_input", "rows"),
        ("one", {"row": {"text": "a"}, "rows": [{"text": "b"}]}, "bad_input", "row"),
        ("one", {"row": {"text": "a"}, "deadline": 0}, "bad_input", "deadline"),
        ("one", {"row": {"text": "a"}, "deadline": 90_000}, "bad_input", "deadline"),
        ("one", {"row": {"text": "a"}, "priority": "high"}, "bad_input", "priority"),
        ("one", {"row": {"text": "a"}, "first": -1}, "bad_input", "first"),
        ("one", {"rows": [{}, {}], "first": 49_999}, "too_large", "rows"),
        ("one", {"row": {"text": "a"}, "tenant": "a.b"}, "bad_input", "tenant"),
        ("nobody", {"row": {"text": "a"}}, "unknown_app", "app"),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_says_why(
    client: Client, app: str, body: dict[str, Any], code: str, field: str | None
) -> None:
    key = f"refused {app} {sorted(body.items())}"
    seq = await client.submit(app, idempotency_key=key, **body)
    heard = await client.hear(job_id(app, key, body.get("tenant", "default")), until="refused", within=10)
    refused = heard.word("refused")
    assert refused is not None
    assert (refused["seq"], refused["error"]["code"], refused["error"].get("field")) == (seq, code, field)
    assert heard.word("summary") is None


async def test_the_key_of_a_refused_message_may_be_used_again(client: Client) -> None:
    job = job_id("one", "again")
    await client.submit("one", idempotency_key="again", rows=texts("again", 2), deadline=-1)
    await client.hear(job, until="refused")
    await client.submit("one", idempotency_key="again", rows=texts("again", 2))
    check(await client.hear(job), "again", 2)


@pytest.mark.parametrize("data", [b"", b"hello", b"[1, 2]", b'{"rows": [{"text": "a"}]}', b'{"rows": [', b"\xc1"])
async def test_a_message_that_names_no_job_is_answered_by_its_number(client: Client, data: bytes) -> None:
    seq = (await client.js.publish("batch.submit.one", data)).seq
    subject = f"batch.result.unreadable.{seq}"

    async def answered() -> bool:
        return subject in [m.subject for m in await _stored(client, "batch.result.unreadable.*")]

    await eventually(answered, within=10)


async def _stored(client: Client, subject: str) -> list[Any]:
    subscription = await client.js.subscribe(subject, ordered_consumer=True)
    found = []
    try:
        while True:
            found.append(await subscription.next_msg(timeout=0.3))
    except TimeoutError:
        return found
    finally:
        await subscription.unsubscribe()


async def test_a_cancel_ends_what_runs_and_what_has_not_begun(stack: Stack, client: Client) -> None:
    await client.submit("one", idempotency_key="cancel", rows=texts("cancel", 400, service_ms=200))
    job = job_id("one", "cancel")
    await eventually(lambda: _ended(stack, job, 5), within=20)
    await client.cancel(job)
    heard = await client.hear(job, within=30)
    assert sorted(heard.rows) == list(range(400))
    done = heard.statuses()["done"]
    assert heard.statuses() == {"done": done, "cancelled": 400 - done}
    assert 5 <= done < 100
    assert {row["error"]["code"] for row in heard.rows.values() if row["status"] == "cancelled"} == {"cancelled"}
    summary = heard.word("summary")
    assert summary is not None
    assert (summary["status"], summary["done"], summary["cancelled"]) == ("cancelled", done, 400 - done)
    await queues_empty(stack, within=10)


async def _ended(stack: Stack, job: str, count: int) -> bool:
    found = [s async for s in pages(stack.broker, BATCH, batch_results(job))]
    return sum(s.subject.rpartition(".")[2].isdigit() for s in found) >= count


async def test_a_job_that_is_cancelled_before_it_begins_runs_nothing(client: Client) -> None:
    job = job_id("one", "never")
    await client.cancel(job)
    await client.submit("one", idempotency_key="never", rows=texts("never", 20, service_ms=500))
    heard = await client.hear(job, within=20)
    assert heard.statuses() == {"cancelled": 20}


async def test_the_deadline_ends_what_runs_and_what_has_not_begun(stack: Stack, client: Client) -> None:
    rows = texts("late", 200, service_ms=200)
    await client.submit("one", as_json=False, idempotency_key="late", rows=rows, deadline=3)
    began = time.monotonic()
    heard = await client.hear(job_id("one", "late"), within=30)
    assert time.monotonic() - began < 20
    done = heard.statuses()["done"]
    assert heard.statuses() == {"done": done, "expired": 200 - done}
    assert 1 <= done < 150
    summary = heard.word("summary")
    assert summary is not None
    assert (summary["status"], summary["expired"]) == ("expired", 200 - done)
    await queues_empty(stack, within=10)


async def test_rows_of_a_higher_priority_start_first(stack: Stack, client: Client) -> None:
    await client.submit("one", idempotency_key="low", rows=texts("low", 400, service_ms=15), priority=-1)
    low, high = job_id("one", "low"), job_id("one", "high")
    await eventually(lambda: _ended(stack, low, 10), within=20)
    await client.submit("one", idempotency_key="high", rows=texts("high", 40, service_ms=15), priority=5)
    check(await client.hear(high), "high", 40)
    assert not await _ended(stack, low, 390), "the rows of the other job wait meanwhile"
    check(await client.hear(low, within=90), "low", 400)


@pytest.mark.parametrize(
    ("key", "messages", "status", "says"),
    [
        ("two lasts", [{"rows": 2, "first": 0}, {"rows": 2, "first": 4}], "failed", "both say `last`"),
        ("overlap", [{"rows": 3, "first": 0, "last": False}, {"rows": 3, "first": 2}], "failed", "came twice"),
        ("after", [{"rows": 3, "first": 5, "last": False}, {"rows": 2, "first": 0}], "failed", "after the last"),
        ("gap", [{"rows": 2, "first": 0, "last": False}, {"rows": 2, "first": 4}], "expired", "rows 2 to 3"),
    ],
)
async def test_messages_that_do_not_fit_together_end_the_job(
    stack: Stack, client: Client, key: str, messages: list[dict[str, Any]], status: str, says: str
) -> None:
    for message in messages:
        rows = texts(key, message["rows"])
        await client.submit("one", **{"idempotency_key": key, "deadline": 2, **message, "rows": rows})
        await asyncio.sleep(0)
    job = job_id("one", key)
    summary = (await client.hear(job, within=20)).word("summary")
    assert summary is not None
    if status == "failed" and summary["status"] == "done":  # one that was whole by itself began before the other came
        refused = (await client.hear(job, until="refused", within=20)).word("refused")
        assert refused is not None
        assert refused["error"]["field"] == "idempotency_key"
        return
    assert summary["status"] == status
    assert says in summary["error"]["message"]


async def test_nothing_is_left_of_jobs_but_results(stack: Stack) -> None:
    """Submissions of jobs that are over, and what was refused, are gone; so are the requests of rows."""
    await nothing_submitted(stack)

    async def purged() -> bool:
        return not [s async for s in Facts(stack.broker).accepted()]

    await eventually(purged, within=20)
    await queues_empty(stack, within=10)


async def nothing_submitted(stack: Stack) -> None:
    async def gone() -> bool:
        info = await stack.broker.api(f"STREAM.INFO.{BATCH}", {"subjects_filter": "batch.submit.*"})
        return not info["state"].get("subjects")

    await eventually(gone, within=20, every=0.05)
