"""The driver: runs one request until its Finish is stored (design section 1).

    pass -> store Graph -> publish what decide() names -> wait for what the pass needs -> next pass ... -> Finish

Any number of drivers may drive one request, one after the other or at once: each pass and the Finish are put-if-absent,
and who loses adopts the stored one.
"""

from __future__ import annotations

import asyncio
import logging

from pydantic import BaseModel

from broker.errors import BrokerError
from cornstalk.app import App
from cornstalk.blame import failure
from cornstalk.errors import CornstalkError
from cornstalk.large import Spooled, without_large
from cornstalk.messages import Error, Finish
from cornstalk.response import stored_response
from cornstalk.traces import where
from gateway.journal import Journal
from gateway.part import Ended, Head, Part

log = logging.getLogger(__name__)


class Driver:
    """Drives one request. Everything it knows is stored; a crash at any line is mended by driving again."""

    def __init__(self, app: App, journal: Journal, request: BaseModel) -> None:
        """`request`: the accepted input as `invoke` takes it."""
        self._journal = journal
        self._part = Part(journal, app.task, request, app.name)

    @property
    def head(self) -> asyncio.Future[Head]:
        """The response once it begins; cancelled if it never does."""
        return self._part.head

    async def run(self) -> Finish:
        """The stored Finish, whoever wrote it."""
        try:
            await self._answer(await self._part.run())
        except Ended:
            pass
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

    async def _answer(self, whole: Head) -> None:
        """Stores the response of the complete pass."""
        request, state = self._journal.accepted.request, self._journal.state
        gens = {token: state.gen(token) for token, _ in whole.streams.values()}
        large: Spooled = {}
        response = without_large(stored_response(request, whole.response, whole.streams, gens), large)
        await self._journal.values.store(large)
        await self._journal.finish(Finish(status="done", response=response))

    async def _fail(self, error: Exception) -> None:
        await self._journal.finish(Finish(status="failed", error=_message(error)))


def _message(error: Exception) -> Error:
    """What the client is told of an error of user code (with its line), a task or the system."""
    if isinstance(error, BrokerError):
        return Error(code="broker", message=str(error), retryable=True)
    return failure(error)
