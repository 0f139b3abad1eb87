"""Responses of a pass: when one may begin, which output each stream field comes from, how it is stored.

Rules 22 and 23 of notes/record.md. All pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel

from cornstalk.errors import RecordError
from cornstalk.messages import INPUT, Edge, StreamRef, extensions
from cornstalk.pending import Source, is_pending, source_of
from cornstalk.record import Pass
from cornstalk.serving import LiveStream
from cornstalk.types import STREAM
from cornstalk.values import no_reference, wire


@dataclass(frozen=True)
class Head:
    """A response that has begun: its plain fields, and which output each of its stream fields comes from."""

    response: Any
    streams: dict[str, tuple[str, str]]  # field path -> (node token, output)


class Field(NamedTuple):
    """One leaf of a response: where it stands ("parts.0.text"), and whether it may stream."""

    path: str
    value: Any
    stream: bool


def fields(value: Any) -> Iterator[Field]:
    """The stream fields of a response, and the values in it that still arrive, in order."""
    return _fields(value, "", False)


def _fields(value: Any, path: str, stream: bool) -> Iterator[Field]:
    if stream or is_pending(value) or isinstance(value, LiveStream):
        yield Field(path, value, stream)
    elif isinstance(value, BaseModel):
        declared = type(value).model_fields
        for name, member in value.__dict__.items():
            marks = declared[name].metadata if name in declared else ()
            yield from _fields(member, _join(path, name), STREAM in marks)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            yield from _fields(member, _join(path, index), False)
    elif isinstance(value, dict):
        for key, member in value.items():
            yield from _fields(member, _join(path, key), False)


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def replaced(value: Any, new: Mapping[str, Any], path: str = "") -> Any:
    """A copy of a response with other values at some field paths."""
    if path in new:
        return new[path]
    if path and not any(p.startswith(f"{path}.") for p in new):
        return value
    if isinstance(value, BaseModel):
        return value.model_copy(update={n: replaced(v, new, _join(path, n)) for n, v in value.__dict__.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(member, new, _join(path, i)) for i, member in enumerate(value)])
    if isinstance(value, dict):
        return {key: replaced(member, new, _join(path, key)) for key, member in value.items()}
    return value


def open_refs(value: Any) -> list[Source]:
    """Where the pending values of a response come from."""
    return [source_of(f.value) for f in fields(value) if is_pending(f.value)]


def streams_only(value: Any) -> bool:
    """Whether every pending value stands in a stream field and is the output of a call."""
    return all(f.stream and source_of(f.value).port is not None for f in fields(value) if is_pending(f.value))


def stream_fields(value: Any, run: Pass) -> dict[str, tuple[str, str]]:
    """Field path -> (node token, output) of each stream field that comes from an output, whether it is known or not."""
    found: dict[str, tuple[str, str]] = {}
    for field in fields(value):
        source = _origin(field.value, run)
        if field.stream and source is not None:
            found[field.path] = (source.node, source.output)
    return found


def _origin(value: Any, run: Pass) -> Source | None:
    if is_pending(value):
        source = source_of(value)
        return source if source.port is not None else None
    known = run.arguments.origin.get(id(value))
    if known is None or not known[0].stream:
        return None
    result = run.results.get(known[0].node)  # a list may have been changed since it was read
    return known[0] if result is not None and (result.outputs or {}).get(known[0].output) == value else None


def begins(value: Any, run: Pass, ended: Collection[str], firsts: Collection[tuple[str, str]]) -> bool:
    """Whether the response of a "done" pass may begin.

    (a) only stream fields are pending, (b) every call that no open stream descends from has ended well, (c) a first
    piece exists. `ended`: tokens of nodes that ended well; `firsts`: (token, output) of stream outputs that have begun.
    """
    sources = open_refs(value)
    if not streams_only(value) or not sources:
        return False
    if not any((s.node, s.output) in firsts or s.node in ended for s in sources):
        return False
    behind = _ancestors(run, [s.node for s in sources])
    return all(token in ended or token in behind for token in run.provisional)


def _ancestors(run: Pass, tokens: list[str]) -> set[str]:
    nodes = {n.token: n for n in run.nodes}
    behind = {INPUT}  # what a client streams in is no call that could fail beside the response
    while tokens:
        token = tokens.pop()
        if token not in behind:
            behind.add(token)
            inputs = nodes[token].inputs if token in nodes else {}
            tokens += [e.node for e in extensions(inputs) if isinstance(e, Edge)]
    return behind


def same_response(begun: Any, value: Any, run: Pass) -> None:
    """Checks that the complete pass agrees with the response that has begun. Raises RecordError which names the field.

    `begun` is the value of the earlier pass, `value` and `run` those of the complete one.
    """

    def known(pending: Any) -> Any:
        if not is_pending(pending):
            return no_reference(pending)
        source = source_of(pending)
        result = run.results.get(source.node)
        return (result.outputs or {}).get(source.output) if result is not None else None

    early, final = wire(begun, known), wire(value, no_reference)
    if early != final:
        raise RecordError(f"the response changed after it began: {_difference(early, final, '')}")


def _difference(early: Any, final: Any, path: str) -> str:
    if isinstance(early, dict) and isinstance(final, dict):
        for key in (*early, *final):
            if early.get(key) != final.get(key):
                return _difference(early.get(key), final.get(key), _join(path, key))
    return f"{path or 'it'} was {_short(early)}, then {_short(final)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def stored_response(
    request: str, value: Any, streams: Mapping[str, tuple[str, str]], gens: Mapping[str, int] | Callable[[str], int]
) -> Any:
    """A response as Finish carries it: each field in `streams` is a StreamRef, the rest plain data.

    `streams` is what `stream_fields` gave; `gens` the generation of each node. Raises TypeError for a Tensor.
    """
    gen = gens if callable(gens) else gens.__getitem__
    stored = wire(value, lambda v: None if is_pending(v) or isinstance(v, LiveStream) else no_reference(v))
    for path, (node, output) in streams.items():
        stored = _replaced(stored, path.split("."), StreamRef(request, node, gen(node), output))
    return stored


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, list):
        index = int(path[0])
        return [*value[:index], _replaced(value[index], path[1:], new), *value[index + 1 :]]
    key = next(k for k in value if str(k) == path[0])
    return {**value, key: _replaced(value[key], path[1:], new)}
