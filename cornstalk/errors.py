"""All errors of Cornstalk but those of broker and sidecar, which stand alone.

CornstalkError
├── BadInput (4xx)         the caller's mistake; `field` names where
│   ├── UnknownApp, UnknownRequest
│   ├── TooLarge
│   └── UnsupportedMedia
├── Refused (429)          try again after `retry_after` seconds
│   └── Unavailable (503)
├── OtherRelease (503)     only a gateway of another release can go on with a request
├── RequestFailed          a request ended failed, cancelled or expired
├── TaskError              a unit task failed; raised at its call, so user code may catch it
├── EngineError            an engine could not do one item
│   └── LineageDiverged    what was made again is not what was stored
├── AppError               an app cannot be loaded or deployed
│   └── Quarantined (503)  an app held up its gateway, and is out of service
├── SetupError             this machine lacks something; says what to do
├── Unreachable            to a client: no gateway answers
├── TimedOut               to a client: the end of a request did not come in time
├── GatewayError           to a client: a gateway's refusal that has no type of its own
└── RecordError            ends a request whatever user code catches
    ├── NondeterministicInvoke
    ├── StaleResult
    └── TooManyCalls
"""

from __future__ import annotations

from typing import ClassVar, Final

from cornstalk.messages import Error

SAID: Final = 2000
"""Characters of a message that comes from foreign code."""


def sayable(text: str) -> str:
    """Text that can be stored and sent whatever stands in it: bounded, and without lone surrogates."""
    text = text[: SAID + 1].encode(errors="backslashreplace").decode()
    return text if len(text) <= SAID else text[:SAID] + "..."


def described(error: BaseException) -> str:
    """ "KeyError: 'x'": an exception of foreign code."""
    try:
        said = str(error)
    except Exception:
        said = "(its message cannot be read)"
    return f"{type(error).__name__}: {sayable(said)}"


class CornstalkError(Exception):
    """Base. `code` is stable and machine-readable; `status` is the HTTP status a gateway answers with."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def to_message(self) -> Error:
        """The form in which the cause travels to the client."""
        return Error(code=self.code, message=sayable(str(self)), retryable=self.retryable)


class BadInput(CornstalkError):
    """Raised when a request cannot be meant: wrong type, unknown field, empty or broken file."""

    code = "bad_input"
    status = 422

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class UnknownApp(BadInput):
    """Raised when no app of that name is deployed."""

    code = "unknown_app"
    status = 404


class UnknownRequest(BadInput):
    """Raised when no request of that id is stored (never accepted, or purged)."""

    code = "unknown_request"
    status = 404


class TooLarge(BadInput):
    """Raised when an input is over a stated limit."""

    code = "too_large"
    status = 413


class UnsupportedMedia(BadInput):
    """Raised when the bytes of an upload are not of a kind the field takes."""

    code = "unsupported_media"
    status = 415


class Refused(CornstalkError):
    """Raised by admission: the system is full. Nothing was stored."""

    code = "overloaded"
    status = 429
    retryable = True

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(Refused):
    """Raised to a client when a gateway cannot serve for the moment, or is not there behind a proxy."""

    code = "unavailable"
    status = 503


class OtherRelease(CornstalkError):
    """Raised when a request was begun by another release of Cornstalk or Python: replayed here it might go astray."""

    code = "other_release"
    status = 503
    retryable = True


class RequestFailed(CornstalkError):
    """Raised to who waits for a request that ended failed, cancelled or expired."""

    code = "request_failed"

    def __init__(self, request: str, status_word: str, error: Error | None) -> None:
        super().__init__(f"request {request} {status_word}" + (f": {error.message}" if error else ""))
        self.request, self.status_word, self.error = request, status_word, error


class TaskError(CornstalkError):
    """Raised at the call of a unit task that failed, so that `try/except` round the call works.

    `call` is the node's readable id ("topic#0/small#1"); `error.node` its token.
    """

    code = "task_failed"

    def __init__(self, error: Error, call: str = "") -> None:
        super().__init__(f"{call or error.node or error.component}: {error.message}")
        self.error, self.call = error, call

    def to_message(self) -> Error:
        return self.error


class EngineError(CornstalkError):
    """Raised by an engine that cannot do one item. `transient` = may pass: tried again with growing delay."""

    code = "engine_failed"

    def __init__(self, message: str, code: str = "engine_failed", transient: bool = False) -> None:
        super().__init__(message)
        self.engine_code, self.transient = code, transient

    def to_message(self) -> Error:
        return Error(code=self.engine_code, message=sayable(str(self)), retryable=self.transient)


class LineageDiverged(EngineError):
    """Raised when an item that runs again makes something other than what is stored of it: never a mixture of both."""

    code = "lineage_diverged"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; an engine must repeat itself for equal inputs and seed", self.code)


class AppError(CornstalkError):
    """Raised when an app file cannot be deployed or loaded; `line` of it, 0 if no line is to blame."""

    code = "bad_app"
    status = 422

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


class Quarantined(AppError):
    """Raised when a pass of this app version did not come back: it would hold up every gateway that runs it."""

    code = "app_quarantined"
    status = 503


class SetupError(CornstalkError):
    """Raised when this machine lacks a program, package or model; the message names the next command."""

    code = "setup"
    status = 503


class Unreachable(CornstalkError):
    """Raised to a client when no gateway answers. Whether what it asked for was done is not known."""

    code = "unreachable"
    status = 503
    retryable = True


class TimedOut(CornstalkError):
    """Raised to a client that did not hear the end of its request within the deadline."""

    code = "timed_out"
    status = 504


class GatewayError(CornstalkError):
    """Raised to a client when a gateway refuses in a way that has no type of its own: `error.code` says which."""

    code = "gateway_error"

    def __init__(self, http_status: int, error: Error) -> None:
        over = f", HTTP {http_status}" if http_status else ""  # 0: said over a WebSocket
        super().__init__(f"{error.message} ({error.code}{over})")
        self.http_status, self.error = http_status, error

    def to_message(self) -> Error:
        return self.error


class RecordError(CornstalkError):
    """Base of the errors that end a request whatever the user's code catches."""

    code = "record_error"


class NondeterministicInvoke(RecordError):
    """Raised when two passes made different calls and no earlier result was new."""

    code = "nondeterministic_invoke"


class StaleResult(RecordError):
    """Raised when a result of another pass or request was used: it was kept outside `invoke`."""

    code = "stale_result"


class TooManyCalls(RecordError):
    """Raised over `max_calls` calls of a composite request, or 4,096 nodes of a request."""

    code = "too_many_calls"
