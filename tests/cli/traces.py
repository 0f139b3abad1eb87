"""Answers of `GET /requests/{id}` made by hand, for tests of what is drawn from them."""

from __future__ import annotations

from typing import Any

REQUEST = "c0ffee" + "0" * 26


def node(id: str, *times: float, outcome: str = "done", **more: Any) -> dict[str, Any]:
    """`times`: recorded, published, claimed, started, first, ended; 0 where there is none."""
    names = ("recorded", "published", "claimed", "started", "first", "ended")
    return {
        "id": id,
        "node": id.replace("#", "").replace("/", ""),
        "component": "null-x",
        "line": "app.py:7",
        "needs": [],
        "gen": 0,
        "restarts": 0,
        "outcome": outcome,
        "times": dict(zip(names, times, strict=True)),
        **more,
    }


def view(*nodes: dict[str, Any], status: str = "done", **more: Any) -> dict[str, Any]:
    times = {"accepted": 1000.0} | ({} if status == "running" else {"finished": 1001.0})
    body = {"request": REQUEST, "app": "words", "status": status, "times": times, "facts": 9, "cuts": 0}
    return {**body, "nodes": list(nodes), **more}


ERROR = {"code": "asked_to_fail", "message": "asked <b>to</b> fail", "component": "null-x", "node": "mind0"}
GOOD = view(
    node("ear#0/transcriber#0", 1000.0, 1000.4, 1000.5, 1000.5, 0.0, 1000.6, needs=["ear0encoder0"]),
    node("ear#0/encoder#0", 1000.0, 1000.0, 1000.1, 1000.2, 0.0, 1000.4),
    node("mind#0", 1000.6, 1000.6, 1000.6, 1000.6, 1000.8, 1001.0, chunks={"text": 12, "sound": 3}),
)


def failed() -> dict[str, Any]:
    """A node whose failure says no times, one that waited for it, one that had to run twice."""
    broken = node("mind#0", 1000.2, 0.0, 0.0, 0.0, 0.0, 0.0, outcome="failed", error=ERROR, worker="w-1", restarts=2)
    broken["times"] |= {"ready": 1000.3, "stored": 1000.7}
    lost = {
        "gen": 0,
        "restarts": 0,
        "outcome": "done",
        "times": {"recorded": 1000.0, "ready": 1000.0, "stored": 1000.1},
    }
    again = node("eye#0", 1000.0, 1000.15, 1000.2, 1000.2, 0.0, 1000.3, gen=1, earlier=[lost])
    waits = node("voice#0", 1000.2, 0.0, 0.0, 0.0, 0.0, 0.0, outcome="")
    return view(again, broken, waits, status="failed", error=ERROR, cuts=2)
