"""What a test asks about: a task or an app, and a request."""

from __future__ import annotations

from typing import Any, NamedTuple

from cornstalk.app import App
from cornstalk.task import CompositeTask


class Subject(NamedTuple):
    """One request to a composite task, or to an app whose `serve` awaits several."""

    task: CompositeTask
    """The composite, or one that holds those of `serve`."""
    served: App | None
    request: Any


def subject(task: CompositeTask | App, request: Any) -> Subject:
    """An app takes a dict as a client sends it, too. Raises BadInput for one that is no request."""
    if not isinstance(task, App):
        return Subject(task, None, request)
    request = task.request(request) if isinstance(request, dict) else request
    return Subject(task.task, task if task.serve is not None else None, request)
