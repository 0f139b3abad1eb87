"""Requests this gateway runs: accepted, attached to, left, cancelled. Any gateway can take over any of them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from broker.connection import Broker, Subscription
from broker.crash import crash_at
from broker.errors import BrokerError
from broker.facts import Facts
from broker.lifetimes import FACT_GRACE, fact_ttl
from broker.requests import Message
from broker.subjects import (
    ALL_ATTACH_PROBES,
    ALL_DRIVE_PROBES,
    attach_hint,
    attach_probe,
    cancel_hint,
    drive_probe,
    finish,
    token,
)
from broker.subjects import accepted as accepted_subject
from broker.subjects import cancel as cancel_subject
from cornstalk.app import App
from cornstalk.errors import BadInput, Quarantined, UnknownRequest
from cornstalk.live import live_request
from cornstalk.messages import Accepted, Cancel, Finish, Status, decode, encode
from cornstalk.release import check_release
from gateway.acceptance import Acceptance, asked, same_request
from gateway.answers import unknown
from gateway.apps import Apps
from gateway.drive import Driver
from gateway.follow import Following
from gateway.journal import Journal
from gateway.options import Options
from gateway.values import Values

log = logging.getLogger(__name__)

END_WAIT: Final = 10.0
"""Seconds that storing a cancel, or the end of what nobody can drive, may take."""
ASK_WAIT: Final = 0.1
"""Seconds that other gateways get to say that a client listens there, before a request that was left is cancelled; and
that they drive a request, before it is driven here.
"""


class Run:
    """One request on this gateway: its driver and whoever listens to it. Soft; another gateway can make its own."""

    def __init__(self, accepted: Accepted, following: Following, driver: Driver) -> None:
        self.accepted, self.following, self.driver = accepted, following, driver
        self.clients = 0
        self.leaving: asyncio.Task[None] | None = None
        self.task: asyncio.Task[Finish] = asyncio.create_task(driver.run())

    async def finished(self) -> Finish:
        """The stored Finish."""
        return await asyncio.shield(self.task)


class Requests:
    """The requests under way here. Nothing in it is the only copy: all of it is stored as facts."""

    def __init__(self, broker: Broker, facts: Facts, apps: Apps, acceptance: Acceptance) -> None:
        self._broker, self._facts, self._apps, self._acceptance = broker, facts, apps, acceptance
        self._runs: dict[str, Run] = {}
        self._adopting: dict[str, asyncio.Task[Run | Finish]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._accepting: set[str] = set()  # stored in a moment or just now, and driven as soon as that is confirmed
        self._probes: list[Subscription] = []
        self.stopping = False
        """Clients are sent elsewhere: that they leave does not mean that they give up."""

    async def start(self) -> None:
        self._probes.append(await self._broker.subscribe_core(ALL_ATTACH_PROBES, self._asked))
        self._probes.append(await self._broker.subscribe_core(ALL_DRIVE_PROBES, self._asked_who_drives))

    async def accept(self, app: App, value: dict[str, Any], options: Options) -> str:
        """Stores the request and begins to drive it. Returns its id; the same Idempotency-Key gives the same request.

        Raises BadInput when that key came with another input.
        """
        accepted = asked(app, value, options)
        if options.idempotent and await self._acceptance.purged(options.request):
            return options.request
        following = await Following(self._broker, self._facts, options.request).start()
        self._accepting.add(options.request)
        try:
            stored, seq = await self._acceptance.store(accepted)
            if not same_request(stored, accepted):
                raise BadInput("this key was used with another input", "Idempotency-Key")
            if seq is not None:
                following.add(stored, seq)
                await self._begin(app, stored, following)
                return options.request
        except BaseException:
            await following.close()
            raise
        finally:
            self._accepting.discard(options.request)
        await following.close()
        return options.request

    async def driven_elsewhere(self, request: str) -> bool:
        """Whether another gateway says that it drives a request, which is not driven here."""
        if request in self._runs or request in self._accepting:
            return False
        try:
            await self._broker.ask(drive_probe(request), b"", ASK_WAIT)
        except BrokerError:
            return False
        return True

    @asynccontextmanager
    async def attached(self, request: str) -> AsyncIterator[Run | Finish]:
        """A client listens to a request: the run that drives it here, begun if need be, or its Finish if it has ended.

        When the last client leaves a request that has not ended and is not durable, it is cancelled after its
        resume_grace. Raises UnknownRequest.
        """
        run = await self.run(request)
        if isinstance(run, Finish):
            yield run
            return
        run.clients += 1
        try:
            if run.leaving is not None:
                run.leaving.cancel()
            await self._broker.publish_core(attach_hint(request))
            yield run
        finally:
            run.clients -= 1
            if run.clients == 0 and not (run.task.done() or run.accepted.durable or self.stopping):
                run.leaving = asyncio.create_task(self._leave(run))

    async def run(self, request: str) -> Run | Finish:
        """The run of a request on this gateway, or the Finish of one that has ended.

        Raises UnknownRequest, and OtherRelease when only a gateway of another release can drive it.
        """
        if (run := self._runs.get(_token(request))) is not None:
            return run
        adopting = self._adopting.get(request)
        if adopting is None:
            adopting = self._adopting[request] = asyncio.create_task(self._adopt(request))
            adopting.add_done_callback(lambda _: self._adopting.pop(request, None))
        return await asyncio.shield(adopting)

    async def cancel(self, request: str, reason: str) -> Status | None:
        """Stores the cancel; the dispatcher ends the request. Idempotent. How the request ended, if it has.

        Raises UnknownRequest.
        """
        if (ended := await self._facts.last(finish(_token(request)))) is not None:
            return decode(Finish, ended.data).status
        stored = await self._facts.last(accepted_subject(request))
        if stored is None:
            raise unknown(request)
        accepted = decode(Accepted, stored.data)
        await self._facts.put(
            cancel_subject(request),
            encode(Cancel(reason=reason)),
            deadline=time.time() + END_WAIT,
            ttl=fact_ttl(accepted.deadline),
            patient=False,
        )
        crash_at("gateway.cancelled")
        await self._broker.publish_core(cancel_hint(request))
        return None

    async def close(self) -> None:
        """Stops driving; what has not ended goes on when a client attaches elsewhere, or by its drive item."""
        for probe in self._probes:
            await probe.close()
        for run in list(self._runs.values()):
            run.task.cancel()
            await asyncio.wait([run.task])
            await run.following.close()

    async def _adopt(self, request: str) -> Run | Finish:
        following = await Following(self._broker, self._facts, request).start()
        try:
            await following.read()
            crash_at("gateway.adopting")
            state = following.state
            if state.finish is not None:
                await following.close()
                return state.finish
            if state.accepted is None:
                raise unknown(request)
            check_release(state.graphs.values())
            app = await self._apps.to_drive(state.accepted.app, state.accepted.app_version)
            return await self._begin(app, state.accepted, following)
        except Quarantined as error:
            await following.close()
            return await self._give_up(request, error)
        except BaseException:
            await following.close()
            raise

    async def _give_up(self, request: str, error: Quarantined) -> Finish:
        """Ends a request that nobody can drive. The stored Finish, whoever wrote it."""
        put = await self._facts.put(
            finish(request),
            encode(Finish(status="failed", error=error.to_message())),
            deadline=time.time() + END_WAIT,
            ttl=FACT_GRACE,
            patient=False,
        )
        return decode(Finish, put.data)

    async def _begin(self, app: App, accepted: Accepted, following: Following) -> Run:
        """Begins to drive, unless another client of this gateway was faster: one run holds all of its clients.

        Raises BadInput when the app does not take the stored input any more.
        """
        input = await Values(self._broker, accepted.request, accepted.deadline).loaded(accepted.input)
        if (there := self._runs.get(accepted.request)) is not None:
            await following.close()
            return there
        live = live_request(app, input)
        ports = {source.output: source.port for source in live.live.values()} if live else {}
        journal = Journal(self._broker, self._facts, following, accepted, app.components(), ports)
        driver = Driver(self._broker, app, journal, live or app.request(input))
        run = self._runs[accepted.request] = Run(accepted, following, driver)
        run.task.add_done_callback(lambda _: self._ended(run))
        return run

    def _ended(self, run: Run) -> None:
        ending = asyncio.create_task(self._end(run))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, run: Run) -> None:
        await run.following.close()
        if self._runs.get(run.accepted.request) is run:
            del self._runs[run.accepted.request]
        if run.leaving is not None:
            run.leaving.cancel()
        if not run.task.cancelled() and (error := run.task.exception()) is not None:
            log.error("request %s: its driver stopped: %s", run.accepted.request, type(error).__name__)

    async def _leave(self, run: Run) -> None:
        """Cancels the request after its grace, unless a client listens here or on another gateway by then."""
        request = run.accepted.request
        attached = asyncio.Event()

        async def hear(_: Message) -> None:
            attached.set()

        try:
            subscription = await self._broker.subscribe_core(attach_hint(request), hear)
            try:
                await self._broker.publish_core(attach_probe(request))  # it may have moved before it was missed here
                await asyncio.wait_for(attached.wait(), max(run.accepted.resume_grace, ASK_WAIT))
            finally:
                await subscription.close()
        except TimeoutError:
            pass
        except BrokerError as error:
            log.warning("request %s is left to its deadline: %s", request, type(error).__name__)
            return
        if attached.is_set() or run.clients or run.task.done():
            return
        try:
            await self.cancel(request, "the client left")
        except (BrokerError, UnknownRequest) as error:
            log.warning("request %s is left to its deadline: %s", request, type(error).__name__)

    async def _asked(self, message: Message) -> None:
        """Another gateway was left by the clients of a request: says so if one listens here."""
        request = message.subject.rpartition(".")[2]
        run = self._runs.get(request)
        if run is not None and run.clients:
            await self._broker.publish_core(attach_hint(request))

    async def _asked_who_drives(self, message: Message) -> None:
        """Another gateway has claimed a drive item. One that stops lets others go on."""
        request = message.subject.rpartition(".")[2]
        run = self._runs.get(request)
        driven = request in self._accepting or (run is not None and not run.task.done())
        if driven and message.reply and not self.stopping:
            await self._broker.publish_core(message.reply)


def _token(request: str) -> str:
    try:
        return token(request)
    except ValueError:
        raise UnknownRequest(f"no request {request[:40]!r} can exist", "request") from None
