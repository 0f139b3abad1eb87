"""From a command line to the fields of an app's request, by its JSON schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cornstalk.cli.errors import USAGE, CliError

FIRST_CHOICES: Final = ("text", "prompt", "question")

Schema = Mapping[str, Any]


def split_fields(pairs: Sequence[str]) -> dict[str, str]:
    """`name=value` options. Raises CliError (usage)."""
    fields: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CliError(f"--field {pair!r} is not name=value", exit_code=USAGE)
        if name in fields:
            raise CliError(f"--field {name} is given twice", exit_code=USAGE)
        fields[name] = value
    return fields


def text_field(app: str, schema: Schema) -> str:
    """Where a bare TEXT goes: the string field called text, prompt or question, or the only one there is."""
    names = [n for n, s in _properties(schema) if _holds(s, lambda t: t.get("type") == "string" and not _is_file(t))]
    return _choose(app, names, "TEXT", [n for n in FIRST_CHOICES if n in names] or names)


def audio_field(app: str, schema: Schema) -> str:
    """Where --audio goes: the upload that is declared to be sound, or the only upload there is."""
    names = [n for n, s in _properties(schema) if _holds(s, _is_file)]
    sounds = [n for n, s in _properties(schema) if _holds(s, lambda t: _is_file(t) and _is_sound(t))]
    return _choose(app, names, "--audio", sounds or names)


def _choose(app: str, names: list[str], what: str, best: list[str]) -> str:
    if not names:
        raise CliError(
            f"{app} takes no {what}", next=f"cornstalk status --json  (shows what {app} takes)", exit_code=USAGE
        )
    if len(best) == 1 or best[0] in FIRST_CHOICES:
        return best[0]
    raise CliError(f"{what} may be {' or '.join(best)}", next=f"--field {best[0]}=...", exit_code=USAGE)


def _properties(schema: Schema) -> list[tuple[str, Schema]]:
    return [(n, {**s, "$defs": schema.get("$defs", {})}) for n, s in schema.get("properties", {}).items()]


def _holds(schema: Schema, test: Any) -> bool:
    """Whether one of the alternatives of a field passes; marks beside `anyOf` count for each of them."""
    outer = {k: v for k, v in schema.items() if k not in ("anyOf", "$ref")}
    if ref := schema.get("$ref"):
        return _holds({**outer, **schema["$defs"].get(ref.rpartition("/")[2], {})}, test)
    if options := schema.get("anyOf"):
        return any(_holds({**outer, **option}, test) for option in options)
    return bool(test(schema))


def _is_file(schema: Schema) -> bool:
    return schema.get("type") == "string" and schema.get("format") == "binary"


def _is_sound(schema: Schema) -> bool:
    return str(schema.get("contentMediaType", "")).startswith("audio/")
