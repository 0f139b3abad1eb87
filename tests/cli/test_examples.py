"""The example apps: what they share, what they ask for, what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from cornstalk.app import App, load_app
from cornstalk.cli.paths import PACKAGE, examples
from cornstalk.errors import BadInput
from cornstalk.record import Pass
from cornstalk.types import Upload

SOUND = Upload("0" * 64, 4, "audio/wav")
PICTURE = Upload("1" * 64, 4, "image/png")
VIDEO = Upload("2" * 64, 4, "video/mp4")


def load(name: str) -> App:
    return load_app((examples() / name).read_text(), name)


def kinds(app: App, **request: Any) -> set[str]:
    """Class names of the tasks that a request's first pass asks for."""
    run = Pass([], {})
    run.run(app.task, app.request(request))
    tasks = app.components()
    return {type(tasks[node.component]).__name__ for node in run.new_nodes}


def test_both_apps_hear_with_the_same_ear() -> None:
    spoken, transcribe = load("spoken_answer.py").components(), load("transcribe.py").components()
    assert set(transcribe) < set(spoken)
    assert {type(t).__name__ for t in transcribe.values()} == {"AudioEncoder", "Transcriber"}
    names = {type(t).__name__ for t in spoken.values()}
    assert names == {"AudioEncoder", "Transcriber", "ReadText", "SampleFrames", "LLM", "TextToSpeech"}


def test_the_demo_speaks_with_the_voice_of_the_answer() -> None:
    speak = load_app((PACKAGE / "cli" / "speak_app.py").read_text())
    assert set(speak.components()) < set(load("spoken_answer.py").components())


def test_a_question_makes_work_only_for_the_sense_it_needs() -> None:
    app = load("spoken_answer.py")
    assert kinds(app, text="hello") == {"LLM", "TextToSpeech"}
    assert kinds(app, text="hello", speak=False) == {"LLM"}
    assert kinds(app, audio=SOUND) == {"AudioEncoder", "Transcriber", "LLM", "TextToSpeech"}
    assert kinds(app, image=PICTURE, speak=False) == {"ReadText", "LLM"}
    assert kinds(app, video=VIDEO) == {"SampleFrames"}  # how many frames there are is not known before


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"text": "a", "audio": SOUND},
        {"text": "a", "image": PICTURE},
        {"audio": SOUND, "image": PICTURE},
        {"image": PICTURE, "video": VIDEO},
        {"text": "a", "colour": "red"},
    ],
)
def test_a_question_is_exactly_one_of_text_audio_image_and_video(request_: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        load("spoken_answer.py").request(request_)
