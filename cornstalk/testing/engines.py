"""Fake engines: plain functions that stand for the workers of a component."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cornstalk.errors import EngineError
from cornstalk.media import sniff
from cornstalk.messages import Error, Node, Upload
from cornstalk.task import UnitTask
from cornstalk.types import Port, bare
from cornstalk.values import check_outputs, check_piece

Engine = Callable[..., Any]
Engines = Mapping[Any, Engine] | Callable[[UnitTask, dict[str, Any]], Any]
"""Task class (or task) -> `engine(**inputs)`; or one `engine(task, inputs)` for all tasks.

An engine gives a dict with each output: values, tensors (any object: it is passed on as it is) and streams, whole or as
a list of pieces. Or it is an async generator function: then its Stream inputs are async iterators of pieces, and it
yields (output, piece). What it raises makes the call fail as it would in a worker, but an AssertionError ends the test.
Engines must be functions of their inputs: a call may run more than once.
"""

_uploads: Final[dict[Upload, bytes]] = {}


def upload(data: bytes, media_type: str = "") -> Upload:
    """What stands in a request for a file that a client sent; engines get its bytes. Kept until the process ends."""
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    made = Upload(digest, len(data), media_type or sniff(data))
    _uploads[made] = data
    return made


def bytes_of(sent: Upload) -> bytes:
    """The bytes of an upload. Raises AssertionError for one that was not made by `upload`."""
    data = _uploads.get(sent)
    if data is None:
        raise AssertionError("the request holds an Upload without bytes: make it with cornstalk.testing.upload(data)")
    return data


@dataclass
class Given:
    """What an engine gave, by kind of output."""

    values: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, list[Any]] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)


class Fakes:
    """The engines of a run. A task that is called and has none is a mistake of the test: AssertionError."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    def _of(self, engines: Mapping[Any, Engine], task: UnitTask) -> Engine:
        for key, engine in engines.items():
            if isinstance(key, UnitTask) and key.component == task.component:
                return engine
        for kind in type(task).__mro__:
            if kind in engines:
                return engines[kind]
        name = type(task).__name__
        raise AssertionError(f"{name} is called, but `engines` has none for it: add {{{name}: function}}")

    def takes_pieces(self, task: UnitTask) -> bool:
        """Whether the engine reads its Stream inputs piece by piece."""
        engines = self._engines
        return inspect.isasyncgenfunction(self._of(engines, task) if isinstance(engines, Mapping) else engines)

    def call(self, task: UnitTask, inputs: dict[str, Any]) -> Any:
        """A dict of outputs, or an async iterator of (output, piece)."""
        if isinstance(self._engines, Mapping):
            return self._of(self._engines, task)(**inputs)
        return self._engines(task, inputs)


def given_by(task: UnitTask, outputs: Any) -> Given:
    """A dict of outputs by kind, checked. Raises EngineError for what a worker would refuse."""
    if not isinstance(outputs, Mapping):
        raise EngineError(f"a dict of outputs was expected, got {type(outputs).__name__}", code="bad_output")
    given = Given()
    for name, value in outputs.items():
        port = task.outputs.get(name)
        if port is not None and port.kind == "tensor":
            given.tensors[name] = value
        elif port is not None and port.kind == "stream":
            given.streams[name] = [check_piece(task, name, p) for p in _pieces(port, value)]
        else:
            given.values[name] = value
    return checked(task, given)


def checked(task: UnitTask, given: Given) -> Given:
    """With the values in msgpack form. Raises EngineError for a missing, unknown or wrong output."""
    for name, port in task.outputs.items():
        if port.kind == "tensor" and name not in given.tensors:
            raise EngineError(f"{task.component}: did not give output {name!r}", code="bad_engine")
    return Given(check_outputs(task, given.values), given.streams, given.tensors)


def _pieces(port: Port, value: Any) -> list[Any]:
    if isinstance(value, list) and bare(port.type)[0] in (str, bytes):
        return value
    return [value] if value else []


def whole(port: Port, pieces: list[Any]) -> Any:
    """What the pieces of a stream add up to."""
    total = port.empty
    for piece in pieces:
        total = total + piece
    return total


async def one_piece(value: Any) -> AsyncIterator[Any]:
    """A whole value as a Stream input: one piece, none if it is empty."""
    if value:
        yield value


def failure_of(error: Exception, node: Node) -> Error:
    """What a worker makes of an error of its engine."""
    code = error.engine_code if isinstance(error, EngineError) else "engine_raised"
    message = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return Error(code=code, message=message, component=node.component, node=node.token)
