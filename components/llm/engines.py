"""Which engine runs a language model, or a thinker: the task says it."""

from __future__ import annotations

from components.engine import Engine
from components.llm.thinker import ThinkerEngine
from components.llm.transformers_engine import TransformersEngine
from components.llm.vllm_engine import VllmEngine
from components.llm.vllm_thinker import VllmThinker
from cornstalk.task import UnitTask
from cornstalk.tasks.llm import LLM
from cornstalk.tasks.omni import Thinker


def language_engine(task: UnitTask) -> Engine:
    """Raises SetupError for arguments that the engine does not take."""
    assert isinstance(task, LLM)
    return VllmEngine(task) if task.engine == "vllm" else TransformersEngine(task)


def thinking_engine(task: UnitTask) -> Engine:
    """Raises SetupError for arguments that the engine does not take."""
    assert isinstance(task, Thinker)
    return VllmThinker(task) if task.engine == "vllm" else ThinkerEngine(task)
