"""Logs that earlier releases stored are replayed: the same calls are found again, and the same answer comes of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cornstalk.messages import Graph, decode, encode
from cornstalk.release import SDK
from tests.cornstalk.model.logs import LOGS, Stored, programs, recorded, replayed

KEPT = sorted(LOGS.glob("*/*.msgpack"))
_stored = msgspec.msgpack.Decoder(Stored)


def test_this_release_has_a_log_of_each_program() -> None:
    assert {path.stem for path in KEPT if path.parent.name == SDK} == programs().keys()


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name} {path.stem}")
def test_an_old_log_answers_as_it_did(path: Path) -> None:
    stored = _stored.decode(path.read_bytes())
    assert replayed(programs()[path.stem](), stored) == (stored.response, 0)


@pytest.mark.parametrize("name", programs())
def test_what_is_recorded_now_is_what_was_recorded_then(name: str) -> None:
    """Byte by byte but for the lines of the calls: tokens, seeds and inputs are those of all gateways of a release."""
    then, now = _stored.decode((LOGS / SDK / f"{name}.msgpack").read_bytes()), recorded(programs()[name]())
    assert [shape(g) for g in now.graphs] == [shape(g) for g in then.graphs]
    assert now.ends == then.ends


def shape(data: bytes) -> bytes:
    graph = decode(Graph, data)
    nodes = tuple(msgspec.structs.replace(node, line="") for node in graph.nodes)
    return encode(msgspec.structs.replace(graph, nodes=nodes))


def test_another_way_is_noticed() -> None:
    """An old log against a program that calls something else first."""
    stored = _stored.decode((LOGS / SDK / "loop.msgpack").read_bytes())
    with pytest.raises(Exception, match="invoke took another way than before"):
        replayed(programs()["edges"](), stored)
