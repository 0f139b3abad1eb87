"""`cornstalk trace`: what happened to one request, from what is stored of it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any, Final

from cornstalk.cli.console import stdout
from cornstalk.cli.errors import USAGE, CliError
from cornstalk.cli.gateway import Gateway
from cornstalk.cli.spans import Timeline, causes, timeline
from cornstalk.cli.trace_html import page
from cornstalk.cli.waterfall import waterfall

_REQUEST: Final = re.compile(r"[0-9a-f]{32}\Z")


async def trace(gateway: Gateway, request: str, html: Path | None, as_json: bool) -> None:
    """Prints it, and writes the page if asked for. Raises CliError; also for a request whose trace was purged."""
    async with gateway:
        if not _REQUEST.match(request):
            raise CliError(f"{request!r} is no request", why="expected 32 hex digits", exit_code=USAGE)
        view = await gateway.call("GET", f"/requests/{request}")
    if not view["app"]:
        raise CliError(
            f"request {request} ended {view['status']}, and what happened was purged",
            why="finished requests are kept for a minute, or for their resume grace if that is longer",
        )
    line = timeline(view, time.time())
    if html is not None:
        _write(html, page(view, line))
    if as_json:
        print(json.dumps(view))
        return
    _print(view, line)
    if html is not None:
        print(html)


def _print(view: dict[str, Any], line: Timeline) -> None:
    console = stdout()
    about = [f"request {view['request']}", view["app"], view["status"], f"{line.total * 1000:.1f} ms"]
    if cuts := view["cuts"]:
        about.append(f"{cuts} guess{'es' if cuts > 1 else ''} given up")
    console.print(*about, sep="  ", markup=False)
    console.print()
    console.print(waterfall(line, console.width))
    if found := causes(view, line.spans):
        console.print()
        for cause in found:
            console.print(cause, markup=False, style="red", soft_wrap=True)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CliError(f"cannot write {path}", why=error.strerror or str(error), exit_code=USAGE) from error
