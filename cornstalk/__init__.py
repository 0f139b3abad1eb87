"""Cornstalk: any-to-any multimodal models as independently scaled components. What an app imports.

Names are imported when they are used: `cornstalk --help` needs none of them, and apps and services do without the HTTP
library of the clients.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cornstalk.app import App
    from cornstalk.chance import new_id, now, rng
    from cornstalk.client import AsyncClient, Client
    from cornstalk.errors import TaskError
    from cornstalk.pending import wait
    from cornstalk.serving import LiveStream, chunks
    from cornstalk.task import CompositeTask, UnitTask
    from cornstalk.types import Audio, Pcm, Stream, Tensor, Upload

__all__ = [
    "App",
    "AsyncClient",
    "Audio",
    "Client",
    "CompositeTask",
    "LiveStream",
    "Pcm",
    "Stream",
    "TaskError",
    "Tensor",
    "UnitTask",
    "Upload",
    "chunks",
    "new_id",
    "now",
    "rng",
    "wait",
]

if not TYPE_CHECKING:  # type checkers would take any name for one that is here
    _MODULE_OF = {
        "App": "app",
        "AsyncClient": "client",
        "Audio": "types",
        "Client": "client",
        "CompositeTask": "task",
        "LiveStream": "serving",
        "Pcm": "types",
        "Stream": "types",
        "TaskError": "errors",
        "Tensor": "types",
        "UnitTask": "task",
        "Upload": "types",
        "chunks": "serving",
        "new_id": "chance",
        "now": "chance",
        "rng": "chance",
        "wait": "pending",
    }

    def __getattr__(name: str) -> Any:
        """Imports a name at its first use."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'cornstalk' has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"cornstalk.{_MODULE_OF[name]}"), name)
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
