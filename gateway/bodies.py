"""JSON schemas of what a gateway answers whatever the app, by the name that an OpenAPI document gives them."""

from __future__ import annotations

from typing import Final, get_args

from cornstalk.records import Rule
from gateway.schemas import Schema, obj, ref

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
_SECONDS: Final[Schema] = {"type": "number", "description": "Unix seconds"}
_SCHEMA: Final[Schema] = {"type": "object", "description": "JSON Schema"}
_COUNTS: Final[Schema] = {"type": "object", "additionalProperties": WHOLE, "description": "by lane"}
_WORKERS: Final[Schema] = WHOLE | {"maximum": 1_000}
_ITEMS: Final[Schema] = WHOLE | {"maximum": 1_000_000}
_WITHIN: Final[Schema] = WHOLE | {"maximum": 3_600}
_BASE64: Final = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)"
_POLICY: Final[Schema] = obj(
    min=_WORKERS,
    max=_WORKERS | {"description": "0: one for each CPU"},
    target=_ITEMS | {"description": "items for each worker; 0: the slots of its engine"},
    activation=_ITEMS | {"description": "more items than that wake a component from zero"},
    cooldown=_WITHIN | {"description": "seconds without work before the last worker goes, if min is 0"},
    window=_WITHIN | {"description": "seconds for which the highest number asked for holds"},
)
_FAILURE: Final[Schema] = obj(
    {
        "retryable": {"type": "boolean"},
        "field": TEXT | {"description": "field, header or option that is to blame"},
        "line": {"type": "integer", "description": "line of the app file"},
        "component": TEXT,
        "node": TEXT,
        "attempt": TEXT,
    },
    code=TEXT | {"description": "stable"},
    message=TEXT,
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "Digest": {"type": "string", "pattern": "^[0-9a-f]{64}$", "description": "blake2b-256, as of `b2sum -l 256`"},
    "Times": {"type": "object", "additionalProperties": {"type": "number"}, "description": "Unix seconds"},
    "Failure": _FAILURE,
    "Error": obj({"request": ref("Id"), "status": TEXT}, error=ref("Failure")),
    "Failed": obj(request=ref("Id"), status={"enum": ["done", "failed", "cancelled", "expired"]}, error=ref("Failure")),
    "Event": obj(
        {"id": TEXT}, event={"enum": ["chunk", "end", "error"]}, data=TEXT | {"contentMediaType": "application/json"}
    ),
    "Upload": {
        "description": "a data URL, base64, or the digest of what was sent to /uploads",
        "anyOf": [
            {"type": "string", "pattern": f"^data:[^,]*;base64,{_BASE64}$"},
            {"type": "string", "pattern": f"^{_BASE64}$"},
            obj(upload=ref("Digest")) | {"additionalProperties": False},
        ],
    },
    "Returned": obj(upload=ref("Digest")),
    "App": obj(
        {"request": _SCHEMA, "response": _SCHEMA, "error": obj(code=TEXT, message=TEXT)},
        name=TEXT,
        version=TEXT,
        components=TEXTS,
        deployed_at=_SECONDS,
    ),
    "Component": obj(
        id=TEXT,
        kind=TEXT,
        task=TEXT,
        apps=TEXTS,
        state={"enum": ["active", "draining"]},
        replicas=WHOLE | {"description": "workers that are wanted"},
        autoscaled={"type": "boolean"},
        pending=_COUNTS,
        in_flight=_COUNTS,
        workers={"type": "array", "items": {"type": "object"}},
    ),
    "Policy": _POLICY,
    "PolicyChange": {**_POLICY, "required": [], "additionalProperties": False},
    "Autoscaled": {
        "description": "a component, the settings of its autoscaling, and its decisions, newest first",
        "allOf": [ref("Component"), obj(policy=ref("Policy"), decisions={"type": "array", "items": ref("Decision")})],
    },
    "Decision": obj(
        component=TEXT,
        at=_SECONDS,
        before=WHOLE,
        replicas=WHOLE,
        asked=WHOLE | {"description": "what the items ask for, before window, rate and limits"},
        rule={"enum": list(get_args(Rule))},
        why=TEXT,
        pending=_COUNTS,
        in_flight=_COUNTS,
        policy=ref("Policy"),
    ),
    "Request": obj(
        {"response": {}, "error": {"anyOf": [ref("Failure"), {"type": "null"}]}},
        request=ref("Id"),
        app=TEXT,
        status={"enum": ["running", "done", "failed", "cancelled", "expired"]},
        times=ref("Times"),
        facts=WHOLE,
        cuts=WHOLE,
        nodes={"type": "array", "items": ref("Node")},
    ),
    "Node": {
        "description": "one call",
        "allOf": [
            obj(
                {"earlier": {"type": "array", "items": ref("Generation")}},
                id=TEXT,
                node=TEXT,
                component=TEXT,
                line=TEXT,
                needs=TEXTS,
            ),
            ref("Generation"),
        ],
    },
    "Generation": obj(
        {
            "worker": TEXT,
            "attempt": TEXT,
            "usage": {"type": "object"},
            "chunks": {"type": "object", "additionalProperties": WHOLE, "description": "pieces of each stream output"},
            "error": ref("Failure"),
            "vanished": {"type": "array", "items": obj(node=TEXT, gen=WHOLE)},
        },
        gen=WHOLE,
        restarts=WHOLE,
        outcome=TEXT | {"description": "empty while it runs"},
        times=ref("Times"),
    ),
    "StoredUpload": obj(digest=ref("Digest"), nbytes=WHOLE, media_type=TEXT, kept_s={"type": "number"}),
    "DeadLetter": obj(
        {"error": ref("Failure"), "subject": TEXT, "item": {"type": ["object", "null"]}},
        id=WHOLE,
        at=_SECONDS,
        component=TEXT,
        reason=TEXT,
        request=TEXT,
        node=TEXT,
        gen=WHOLE,
        nbytes=WHOLE,
        attempts=WHOLE,
    ),
}
