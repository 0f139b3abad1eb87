"""A message that is taken while its job begins is part of it or refused, never forgotten."""

from __future__ import annotations

from typing import Any

import msgspec

from broker.connection import Broker
from broker.registry import Registry
from broker.subjects import APPS, batch_submit, batch_word
from cornstalk.app import load_app
from cornstalk.batch import Begun
from cornstalk.messages import encode
from cornstalk.records import AppRecord
from gateway.apps import Apps
from gateway.batch_begin import begin
from gateway.batch_intake import Intake, Taken
from gateway.batch_store import JobStore
from tests.e2e.apps import APPS as FOLDER


class Interleaved(JobStore):
    """In which another gateway takes a message between the look at the parts of a job and its Begun, or after it."""

    def __init__(self, broker: Broker, intake: Intake, stray: int, *, dies: bool) -> None:
        super().__init__(broker)
        self._intake, self._stray, self._dies = intake, stray, dies
        self.taken: Taken | None = None

    async def put_begun(self, job: str, begun: Begun) -> Begun:
        self.taken = await self._intake.take(self._stray)
        stored = await super().put_begun(job, begun)
        if self._dies:
            raise ConnectionResetError
        return stored


async def submitted(broker: Broker, **body: Any) -> int:
    data = msgspec.json.encode({"idempotency_key": "k", **body})
    return (await broker.js.publish(batch_submit("one"), data)).seq


async def begun_beside_a_stray(broker: Broker, *, dies: bool) -> tuple[JobStore, Taken, int]:
    source = (FOLDER / "one.py").read_text()
    app = load_app(source, "one.py")
    await Registry(broker, APPS).put("one", encode(AppRecord(name="one", version=app.version, source=source)))
    plain, apps = JobStore(broker), Apps(broker)
    intake = Intake(broker, plain, apps)
    last = await intake.take(await submitted(broker, rows=[{"text": "a"}, {"text": "b"}], first=0, last=True))
    assert last is not None
    stray = await submitted(broker, rows=[{"text": "c"}], first=5, last=False)
    store = Interleaved(broker, intake, stray, dies=dies)
    try:
        await begin(store, apps, last, 1)
    except ConnectionResetError:
        assert dies
    assert store.taken is not None, "the other gateway saw no job that had begun"
    if dies:
        assert await plain.message(stray) is not None
        await begin(plain, apps, last, 2)
    return plain, last, stray


async def refused(broker: Broker, job: str) -> dict[str, Any]:
    stored = await broker.js.get_last_msg("BATCH", batch_word(job, "refused"))
    assert stored.data is not None
    found: dict[str, Any] = msgspec.json.decode(stored.data)
    return found


async def test_a_message_taken_while_its_job_begins_is_refused(broker: Broker) -> None:
    store, last, stray = await begun_beside_a_stray(broker, dies=False)
    refusal = await refused(broker, last.job)
    assert (refusal["seq"], refusal["error"]["field"]) == (stray, "idempotency_key")
    assert await store.message(stray) is None
    begun = await store.begun(last.job)
    assert begun is not None
    assert begun.total == 2


async def test_also_if_the_gateway_dies_as_it_begins(broker: Broker) -> None:
    store, last, stray = await begun_beside_a_stray(broker, dies=True)
    assert (await refused(broker, last.job))["seq"] == stray
    assert await store.message(stray) is None
