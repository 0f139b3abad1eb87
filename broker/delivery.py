"""One delivery from a work queue, and the answers to it."""

from __future__ import annotations

from broker.connection import Broker
from broker.requests import Message


class Delivery:
    """One delivery of one stored message. The answers are sent once and not confirmed: a lost one means redelivery."""

    __slots__ = (
        "_broker",
        "consumer_seq",
        "data",
        "delay",
        "delivered",
        "headers",
        "reply",
        "stream_seq",
        "subject",
        "time",
    )

    def __init__(self, broker: Broker, message: Message) -> None:
        self._broker = broker
        self.subject = message.subject
        self.data = message.data
        self.headers = message.headers or {}
        self.reply = message.reply
        self.delay = 0.0  # with which it was handed back
        parts = message.reply.split(".")
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<time>.<pending>...
        fields = parts[4:] if len(parts) == 9 else parts[6:]
        self.delivered, self.stream_seq, self.consumer_seq = int(fields[0]), int(fields[1]), int(fields[2])
        self.time = int(fields[3]) / 1e9  # when it was stored, Unix seconds

    async def ack(self) -> None:
        """Done: removed from the queue. The last line of whoever handles an item."""
        await self._broker.publish_core(self.reply, b"+ACK")

    async def nak(self, delay: float) -> None:
        """To be delivered again after `delay` seconds."""
        self.delay = delay
        await self._broker.publish_core(self.reply, b'-NAK {"delay": %d}' % int(delay * 1e9) if delay > 0 else b"-NAK")

    async def term(self, reason: str) -> None:
        """Never to be delivered again: removed from the queue."""
        await self._broker.publish_core(self.reply, f"+TERM {reason}".encode())

    async def in_progress(self) -> None:
        """Starts the ack_wait of this delivery again."""
        await self._broker.publish_core(self.reply, b"+WPI")
