"""Which engine runs a task. Third parties add theirs by the entry point group `cornstalk.engines`.

An entry point is named by the task's path ("package.module:Task") and points to the engine class, or to a function that
takes the task and gives the engine.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Final

from components.engine import Engine
from cornstalk.errors import SetupError
from cornstalk.task import UnitTask

GROUP: Final = "cornstalk.engines"
BUILT_IN: Final = {
    "cornstalk.tasks.null:Null": "components.null:NullEngine",
    "cornstalk.tasks.null:NullTensor": "components.null:NullEngine",
    "cornstalk.tasks.null:NullCached": "components.null:NullEngine",
    "cornstalk.tasks.null:NullStream": "components.null:NullEngine",
    "cornstalk.tasks.null:NullTensors": "components.null:NullEngine",
    "cornstalk.tasks.filming:VideoGenerator": "components.generator.video:VideoEngine",
    "cornstalk.tasks.embedding:TextEncoder": "components.encoder.text:TextEncoderEngine",
    "cornstalk.tasks.hearing:AudioEncoder": "components.encoder.whisper:WhisperEncoder",
    "cornstalk.tasks.hearing:Transcriber": "components.llm.whisper_decoder:WhisperDecoder",
    "cornstalk.tasks.llm:LLM": "components.llm.engines:language_engine",
    "cornstalk.tasks.omni:OmniEar": "components.encoder.omni_ear:OmniEarEngine",
    "cornstalk.tasks.omni:Talker": "components.generator.talker:TalkerEngine",
    "cornstalk.tasks.omni:Thinker": "components.llm.engines:thinking_engine",
    "cornstalk.tasks.omni:Vocoder": "components.generator.vocoder:VocoderEngine",
    "cornstalk.tasks.painting:ImageGenerator": "components.generator.image:ImageEngine",
    "cornstalk.tasks.painting:PromptEncoder": "components.encoder.prompt:PromptEngine",
    "cornstalk.tasks.reading:ReadText": "components.ocr.rapid:RapidOcr",
    "cornstalk.tasks.reading:CountPages": "components.ocr.pages:PageCounter",
    "cornstalk.tasks.reading:SampleFrames": "components.ocr.frames:FrameSampler",
    "cornstalk.tasks.seeing:ImageEncoder": "components.encoder.vision:VisionEncoder",
    "cornstalk.tasks.speech:TextToSpeech": "components.generator.hibari:HibariEngine",
}


def engine_for(task: UnitTask) -> Engine:
    """A fresh engine for the task. Raises SetupError when none is known, or its package is missing."""
    path = task.task_path
    target = BUILT_IN.get(path) or next((e.value for e in entry_points(group=GROUP) if e.name == path), None)
    if target is None:
        raise SetupError(
            f"no engine for {path}: known are {', '.join(sorted(BUILT_IN))}, and entry points in {GROUP!r}"
        )
    module, _, name = target.partition(":")
    try:
        engine: Engine = getattr(importlib.import_module(module), name)(task)
    except ImportError as error:
        raise SetupError(f"the engine of {path} needs {error.name}: pip install 'cornstalk[models]'") from error
    if task.cached and not hasattr(engine, "identity"):
        raise SetupError(f"the engine of {path} has no `identity`, without which a cached task cannot run")
    return engine
