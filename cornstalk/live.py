"""Requests some of whose Stream fields arrive while they run: each pass gets one of its own, with pending values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from pydantic import BaseModel

from cornstalk.app import App
from cornstalk.errors import AppError, BadInput, StaleResult
from cornstalk.messages import INPUT, StreamRef
from cornstalk.pending import Recorder, Source, make_pending
from cornstalk.types import Port, field_type, is_stream, make_port


class LiveRequest:
    """Stands for a request until each pass makes its own. Holds nothing that is not stored or made again."""

    def __init__(
        self, make: Callable[[dict[str, Any]], Any], known: dict[str, Any], live: Mapping[str, Source]
    ) -> None:
        """`make` validates all fields; `known` are those that have come, `live` says where the others come from."""
        self._make, self._known, self.live = make, known, dict(live)

    def filled(self, value: Callable[[Source], Any]) -> Any:
        """A fresh request, with `value(source)` for each field that arrives. Raises what validation raises."""
        arriving = {name: value(source) for name, source in self.live.items()}
        return self._make({**copy.deepcopy(self._known), **arriving})


def stream_port(model: type[BaseModel], field: str) -> Port:
    """The declared type of a field that is to arrive in pieces. Raises BadInput when it cannot."""
    info = model.model_fields.get(field)
    if info is None:
        raise BadInput(f"no such field; {model.__name__} has {', '.join(model.model_fields)}", field)
    hint = field_type(info)
    if not is_stream(hint):
        raise BadInput("expected whole: only a field that the app declares Stream[...] can arrive in pieces", field)
    try:
        return make_port(field, hint)
    except TypeError as error:
        raise BadInput(str(error), field) from error


def live_request(app: App, data: Mapping[str, Any]) -> LiveRequest | None:
    """The request that a stored input means, if fields of it arrive while it runs."""
    live = {name: _source(app, name) for name, value in data.items() if isinstance(value, StreamRef)}
    known = {name: value for name, value in data.items() if name not in live}
    return LiveRequest(app.request, known, live) if live else None


def checked(app: App, request: LiveRequest) -> BaseModel:
    """The request with nothing of its live fields yet. Raises BadInput for what is wrong with the others, or when the
    app's model looks at a live field: then it can only come whole.
    """
    try:
        made: BaseModel = request.filled(lambda source: make_pending(source.port.pending, source, _NOBODY))
    except AppError as error:
        if not isinstance(error.__cause__, StaleResult):
            raise
        fields = ", ".join(request.live)
        raise BadInput(
            f"expected whole: the request of {app.name} looks at it before it is complete", fields
        ) from error
    return made


def _source(app: App, field: str) -> Source:
    return Source(INPUT, field, stream_port(app.request_model, field), INPUT)


_NOBODY: Final = cast(Recorder, object())
"""Who touches a value of this owner, which is no pass, raises StaleResult."""
