"""Cornstalk: any-to-any multimodal models as independently scaled components. What an app imports."""

from cornstalk.app import App
from cornstalk.chance import new_id, now, rng
from cornstalk.errors import TaskError
from cornstalk.pending import wait
from cornstalk.task import CompositeTask, UnitTask
from cornstalk.types import Audio, Pcm, Stream, Tensor, Upload

__all__ = [
    "App",
    "Audio",
    "CompositeTask",
    "Pcm",
    "Stream",
    "TaskError",
    "Tensor",
    "UnitTask",
    "Upload",
    "new_id",
    "now",
    "rng",
    "wait",
]
