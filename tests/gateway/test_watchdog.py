"""A pass that holds up the event loop is named, with its app and line, while it runs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cornstalk.app import APP_FILE
from gateway.watchdog import Watchdog


def endless(caplog: pytest.LogCaptureFixture) -> None:
    """What a library may do with a pending value that raises each time; here until somebody has said so."""
    until = time.monotonic() + 10
    while not caplog.text and time.monotonic() < until:
        pass


def test_a_long_pass_is_named_with_the_line_of_its_app(caplog: pytest.LogCaptureFixture) -> None:
    scope: dict[str, Any] = {"library": endless}
    exec(compile("def invoke(q):\n    return library(q)\n", f"{APP_FILE}1>/slow.py", "exec"), scope)
    watchdog = Watchdog()
    with watchdog.watch("quick", "1"):
        pass
    with watchdog.watch("slow", "1"):
        scope["invoke"](caplog)
    (record,) = caplog.records
    assert "a pass of app slow has run for over 1 s, at <app 1>/slow.py:2;" in record.getMessage()
