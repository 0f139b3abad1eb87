"""Flags that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Store = Annotated[
    Path | None, typer.Option(help="Folder of the tree: data, logs, tokens. [env CORNSTALK_STORE, ./.cornstalk]")
]
Url = Annotated[str | None, typer.Option(help="A gateway. [env CORNSTALK_URL, the tree in the store]")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
