"""Cornstalk: any-to-any multimodal models as independently scaled components. What an app imports."""

from typing import TYPE_CHECKING, Any

from cornstalk.app import App
from cornstalk.chance import new_id, now, rng
from cornstalk.errors import TaskError
from cornstalk.pending import wait
from cornstalk.serving import LiveStream, chunks
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.types import Audio, Pcm, Stream, Tensor, Upload

if TYPE_CHECKING:
    from cornstalk.client import AsyncClient, Client

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


def __getattr__(name: str) -> Any:
    """The clients are imported when they are used: apps and services do without an HTTP library."""
    if name in ("AsyncClient", "Client"):
        import cornstalk.client

        return getattr(cornstalk.client, name)
    raise AttributeError(f"module 'cornstalk' has no attribute {name!r}")
