"""nats-py's client, without its trust in a peer that fell silent: a host that lost power, a link that drops all.

Such a peer neither answers nor closes. nats-py waits for its own buffer to be sent, in the very loop that ought to find
that out and once more when it lets go of the connection: until TCP gives up, a quarter of an hour later.
"""

from __future__ import annotations

import asyncio

import nats.errors

from broker import wire


class Client(wire.Client):
    """Finds a silent peer within `ping_interval` times (`max_outstanding_pings` + 1), and reconnects at once then."""

    async def _ping_interval(self) -> None:
        """As nats-py's, but it waits for nothing except its time."""
        while True:
            await asyncio.sleep(self.options["ping_interval"])
            if not self.is_connected:
                continue
            self._pings_outstanding += 1
            if self._pings_outstanding > self.options["max_outstanding_pings"]:
                await self._process_op_err(nats.errors.StaleConnectionError())
                return
            self._pongs.append(asyncio.get_running_loop().create_future())
            self._transport.write(b"PING\r\n")

    async def _process_op_err(self, error: Exception) -> None:
        """The connection is given up: what is still to be sent on it would only hold up the next one."""
        writer = self._transport._io_writer if self._transport is not None else None
        if writer is not None:
            writer.transport.abort()
        await super()._process_op_err(error)

    async def _process_pong(self) -> None:
        """As nats-py's, but for the answer to a flush that was given up: the reader must not end over it."""
        if self._pongs:
            future = self._pongs.pop(0)
            if not future.done():
                future.set_result(True)
            self._pongs_received += 1
            self._pings_outstanding = 0

    async def _read_loop(self) -> None:
        """As nats-py's, but a reader that ends over an error ends its connection, which would be deaf without it."""
        await super()._read_loop()
        task = asyncio.current_task()
        if self.is_connected and task is not None and not task.cancelling():
            await self._process_op_err(nats.errors.Error("the reader of the connection has failed"))
