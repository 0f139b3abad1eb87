"""The driver: runs one request until its Finish is stored (design section 1).

    pass -> store Graph -> publish what decide() names -> wait for what the pass needs -> next pass ... -> Finish

Any number of drivers may drive one request, one after the other or at once: each pass and the Finish are put-if-absent,
and who loses adopts the stored one.
"""

from __future__ import annotations

import asyncio
import logging
import time

from pydantic import BaseModel

from broker.connection import Broker
from broker.crash import crash_at
from broker.errors import BrokerError
from cornstalk.app import App
from cornstalk.blame import failure
from cornstalk.errors import CornstalkError, OtherRelease
from cornstalk.large import Spooled, without_large
from cornstalk.live import LiveRequest
from cornstalk.messages import Error, Finish
from cornstalk.response import Head, stored_response
from cornstalk.traces import where
from gateway.journal import Journal
from gateway.part import Ended, Part
from gateway.session import Served

log = logging.getLogger(__name__)


class Driver:
    """Drives one request. Everything it knows is stored; a crash at any line is mended by driving again."""

    def __init__(self, broker: Broker, app: App, journal: Journal, request: BaseModel | LiveRequest) -> None:
        """`request`: the accepted input as `invoke` or `serve` takes it."""
        self._broker, self._app, self._journal, self._request = broker, app, journal, request
        self._part = Part(journal, app.task, request, app.name)

    @property
    def head(self) -> asyncio.Future[Head]:
        """The response once it begins; cancelled if it never does."""
        return self._part.head

    async def run(self) -> Finish:
        """The stored Finish, whoever wrote it."""
        try:
            await self._answer(await (self._part.run() if self._app.serve is None else self._serve()))
        except Ended:
            pass
        except OtherRelease as error:  # both began at once, and its pass was stored first
            log.warning("request %s is left to who drives it: %s", self._journal.accepted.request, error)
            await self._over()
        except (CornstalkError, BrokerError, TypeError) as error:
            await self._fail(error)
        except Exception as error:
            log.error("the driver of request %s stopped: %s", self._journal.accepted.request, where(error))
            await self._fail(error)
        finally:
            if not self.head.done():
                self.head.cancel()
        assert self._journal.state.finish is not None
        return self._journal.state.finish

    async def _serve(self) -> Head:
        """What `serve` answers, once every call it awaited has ended well. Raises Ended if the request ends before."""
        serving = asyncio.create_task(self._served())
        over = asyncio.create_task(self._over())
        try:
            await asyncio.wait((serving, over), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise Ended
            return serving.result()
        finally:
            serving.cancel()
            over.cancel()
            await asyncio.wait((serving, over))

    async def _served(self) -> Head:
        served = Served(self._broker, self._journal, self._app)
        try:
            whole = await served.run(self._request)
            crash_at("driver.served")
            await self._journal.close(whole.streams)
            self.head.set_result(whole)
            await served.ended()
            return whole
        finally:
            await served.close()

    async def _over(self) -> None:
        while self._journal.state.finish is None:
            await self._journal.changed()

    async def _answer(self, whole: Head) -> None:
        """Stores the response of the complete pass."""
        request, state = self._journal.accepted.request, self._journal.state
        gens = {token: state.gen(token) for token, _ in whole.streams.values()}
        large: Spooled = {}
        response = without_large(stored_response(request, whole.response, whole.streams, gens), large)
        await self._journal.values.store(large)
        crash_at("driver.response_spooled")
        await self._journal.finish(Finish(status="done", response=response))

    async def _fail(self, error: Exception) -> None:
        finish = Finish(status="failed", error=_message(error))
        if time.time() >= self._journal.accepted.deadline:  # it failed for that: nothing is stored any more
            finish = Finish(
                status="expired", error=Error(code="expired", message="the deadline passed", retryable=True)
            )
        await self._journal.finish(finish)


def _message(error: Exception) -> Error:
    """What the client is told of an error of user code (with its line), a task or the system."""
    if isinstance(error, BrokerError):
        return Error(code="broker", message=str(error), retryable=True)
    return failure(error)
