"""From a command line to the fields of an app's request, by its JSON schema. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cornstalk.cli.errors import USAGE, CliError

FIRST_CHOICES: Final = ("text", "prompt", "question")

Schema = Mapping[str, Any]


def split_fields(pairs: Sequence[str]) -> dict[str, str]:
    """`name=value` of --set. Raises CliError (usage)."""
    fields: dict[str, str] = {}
    for name, value in _split(pairs, "--set"):
        if name in fields:
            raise CliError(f"--set {name} is given twice", exit_code=USAGE)
        fields[name] = value
    return fields


def split_files(pairs: Sequence[str]) -> list[tuple[str, Path]]:
    """`name=path` of --file, where a field may be given several files. Raises CliError (usage)."""
    return [(name, Path(path)) for name, path in _split(pairs, "--file")]


def _split(pairs: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise CliError(f"{option} {pair!r} is not name=value", exit_code=USAGE)
        yield name, value


def text_field(app: str, schema: Schema) -> str:
    """Where a bare TEXT goes: the string field called text, prompt or question, or the only one there is."""
    names = [n for n, field in _properties(schema) if any(map(_is_text, _alternatives(field)))]
    return _choose(app, "TEXT", [n for n in FIRST_CHOICES if n in names] or names, "--set {}=...")


def file_field(app: str, schema: Schema, kind: str) -> str:
    """Where --audio, --image or --video (`kind`) goes: the upload declared to be of this kind, else one of any kind."""
    takes = {
        n: {_media(a) for a in _alternatives(field, lists=True) if _is_file(a)} for n, field in _properties(schema)
    }
    exact = [n for n, kinds in takes.items() if kind in kinds]
    return _choose(app, f"--{kind}", exact or [n for n, kinds in takes.items() if "" in kinds], "--file {}=PATH")


def _choose(app: str, what: str, names: list[str], instead: str) -> str:
    if not names:
        raise CliError(
            f"{app} takes no {what}", next="cornstalk status --json  (shows what each app takes)", exit_code=USAGE
        )
    if len(names) == 1 or names[0] in FIRST_CHOICES:
        return names[0]
    raise CliError(f"{what} may be {' or '.join(names)}", next=instead.format(names[0]), exit_code=USAGE)


def _properties(schema: Schema) -> list[tuple[str, Schema]]:
    return [(n, {**s, "$defs": schema.get("$defs", {})}) for n, s in schema.get("properties", {}).items()]


def _alternatives(schema: Schema, lists: bool = False) -> Iterator[Schema]:
    """What a field may be, and with `lists` what its elements may be; marks beside `anyOf` count for each."""
    outer = {k: v for k, v in schema.items() if k not in ("anyOf", "$ref", "items")}
    if ref := schema.get("$ref"):
        yield from _alternatives({**outer, **schema["$defs"].get(ref.rpartition("/")[2], {})}, lists)
    elif options := schema.get("anyOf"):
        for option in options:
            yield from _alternatives({**outer, **option}, lists)
    elif lists and isinstance(elements := schema.get("items"), Mapping):
        yield from _alternatives({**outer, **elements}, lists)
    else:
        yield schema


def _is_text(schema: Schema) -> bool:
    return schema.get("type") == "string" and not _is_file(schema)


def _is_file(schema: Schema) -> bool:
    return schema.get("type") == "string" and schema.get("format") == "binary"


def _media(schema: Schema) -> str:
    """The kind of media that a file is declared to be; "" for any."""
    return str(schema.get("contentMediaType", "")).partition("/")[0]
