"""Everything `broker` raises. Standalone: services translate what a client may see.

BrokerError
├── ServerError            the embedded server did not start
│   └── NotFound, TooOld, StoreLocked, StartFailed
├── ConnectFailed          no usable server behind the URL
├── Disconnected           the connection is closed, or its outgoing buffer is full
├── DeadlineExceeded       not confirmed before the deadline; may be stored all the same
│   └── NoStream           nothing stores what is sent to that subject
├── ReadTimeout            no answer to a read
├── QueueFull              a stream is at its limit: try again later
├── StorageFull            the server's storage limit is reached
├── PayloadTooLarge        never sent, or refused for its size
├── Conflict               an expected sequence was wrong: somebody wrote before
├── Rejected               any other refusal of JetStream
├── RequestEnded           the request is over, or its messages were purged
├── Superseded             another attempt took the output over: stop without ack, nak or release
├── UploadGone             spooled bytes expired, are incomplete or do not match their digest
└── TopologyError          a stream or consumer is not what this release needs
"""

from __future__ import annotations


class BrokerError(Exception):
    """Base of all errors of this package."""


class ServerError(BrokerError):
    """Raised when an embedded server cannot be had."""


class NotFound(ServerError):
    """Raised when no nats-server binary is found; says how to get one."""


class TooOld(ServerError):
    """Raised when the only nats-server found, or the one asked for, is older than needed."""


class StoreLocked(ServerError):
    """Raised when another server uses the store."""


class StartFailed(ServerError):
    """Raised when the server ended, or was not ready in time; holds the end of its log."""


class ConnectFailed(BrokerError):
    """Raised when no server answers, it refuses the token, is too old or has no JetStream."""


class Disconnected(BrokerError):
    """Raised when the connection was closed for good, or nothing more can be buffered during an outage."""


class DeadlineExceeded(BrokerError):
    """Raised when a message was not confirmed before its deadline. It may be stored all the same."""


class NoStream(DeadlineExceeded):
    """Raised at the deadline when no stream took the subject: it is gone or closed, or its server had just started."""


class ReadTimeout(BrokerError):
    """Raised when a read got no complete answer in time."""


class QueueFull(BrokerError):
    """Raised when a stream refuses a message for its limits (10077). Nothing was stored."""


class StorageFull(BrokerError):
    """Raised when the storage of the account or server is used up (10047)."""


class PayloadTooLarge(BrokerError):
    """Raised before sending, or when the stream refuses the size (10054)."""


class Rejected(BrokerError):
    """Raised for any other refusal. `err_code` is JetStream's number."""

    def __init__(self, err_code: int, what: str) -> None:
        super().__init__(f"{what} (JetStream {err_code})")
        self.err_code = err_code


class Conflict(Rejected):
    """Raised when the expected last sequence was wrong (10071), or another write is in flight (10164)."""


class RequestEnded(BrokerError):
    """Raised when the request is over, or what this write or read builds on was purged or expired."""


class Superseded(BrokerError):
    """Raised when another attempt wrote after this one: stop, without ack, nak or release."""


class UploadGone(BrokerError):
    """Raised when spooled bytes expired, are incomplete, or do not match their digest."""


class TopologyError(BrokerError):
    """Raised when a stream or consumer cannot be made what this release needs."""
