"""The HTTP status of a request that failed."""

from __future__ import annotations

import pytest

from cornstalk.messages import Error, Finish
from gateway.answers import failure


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Error(code="bad_input", message="temperature: ..."), 422),
        (Error(code="bad_input", message="json_schema: ...", component="llm-x-y"), 422),
        (Error(code="bad_image", message="...", component="encoder-x-y"), 422),
        (Error(code="engine_failed", message="...", component="llm-x-y"), 502),
        (Error(code="app_failed", message="..."), 500),
    ],
)
def test_it_says_whose_fault_it_was(error: Error, status: int) -> None:
    assert failure("r", Finish(status="failed", error=error))[0] == status
