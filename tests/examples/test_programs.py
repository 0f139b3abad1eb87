"""What the examples do with every result: as plain Python, recorded, shuffled and crashed at each step."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest

from cornstalk.app import App
from cornstalk.cli.paths import examples
from cornstalk.errors import BadInput
from cornstalk.tasks import (
    LLM,
    AudioEncoder,
    CountPages,
    ImageEncoder,
    ImageGenerator,
    OmniEar,
    PromptEncoder,
    ReadText,
    SampleFrames,
    Talker,
    TextToSpeech,
    Thinker,
    Transcriber,
    VideoGenerator,
    Vocoder,
)
from cornstalk.testing import Engines, Run, assert_runs_side_by_side, assert_uses, check, run_recorded, upload
from tests.cornstalk.test_media import png, wav

Load = Callable[[str], App]
Answers = Callable[[str], str]

TIFF = b"II*\0\x08\0\0\0" + bytes(4)
MP4 = b"\0\0\0\x10ftypisom" + bytes(4)


def llm(answers: Answers) -> Callable[..., dict[str, Any]]:
    """A model that answers each prompt so."""

    def engine(prompt: str, **_: Any) -> dict[str, Any]:
        text = answers(prompt)
        return {"text": text, "tokens": len(text.split())}

    return engine


def speak(text: str) -> dict[str, Any]:
    sound = text.upper().encode()
    return {"audio": sound, "samples": len(sound) // 2}


def checked(app: App, request: dict[str, Any], engines: Engines) -> Run:
    run = check(app, request, engines)
    assert run is not None
    return run


@pytest.mark.parametrize("name", sorted(path.stem for path in examples().glob("*.py")))
def test_each_says_how_it_is_run(name: str) -> None:
    told = ast.get_docstring(ast.parse((examples() / f"{name}.py").read_text())) or ""
    assert f"cornstalk deploy examples/{name}.py\n" in told
    assert f"cornstalk invoke {name} " in told


# ------------------------------------------------------------ spoken_answer

SPOKEN: Engines = {
    AudioEncoder: lambda audio: {"states": audio},
    Transcriber: lambda states: {"text": f"heard {len(states)}", "tokens": 2},
    ReadText: lambda image, page: {"text": f"read {len(image)}", "lines": []},
    LLM: llm(lambda prompt: f"re: {prompt}"),
    TextToSpeech: speak,
}


@pytest.mark.parametrize(
    ("asked", "question"),
    [
        ({"text": "why"}, "why"),
        ({"audio": upload(wav())}, f"heard {len(wav())}"),
        ({"image": upload(png(9, 9))}, f"read {len(png(9, 9))}"),
    ],
)
def test_spoken_answer(load: Load, asked: dict[str, Any], question: str) -> None:
    run = checked(load("spoken_answer"), asked, SPOKEN)
    assert run.response.question == question
    assert run.response.text == f"re: {question}"
    assert run.response.speech == f"RE: {question.upper()}".encode()
    (mind,) = run.graph.of(LLM)
    assert len(mind.sources) == ("text" not in asked)  # an edge: the program does not wait for the question


@pytest.mark.parametrize(
    ("texts", "question"),
    [
        (["why", "why", "why"], "why"),
        (["", "Why is", "Why is", "", "the sky blue?"], "Why is\nthe sky blue?"),
        (["once", "", "once"], "once\nonce"),
        (["", ""], ""),
        ([], ""),
    ],
)
def test_the_texts_that_a_video_shows_are_the_question(load: Load, texts: list[str], question: str) -> None:
    engines = {
        **SPOKEN,
        SampleFrames: lambda video, most: {"frames": texts, "times": [float(n) for n in range(len(texts))]},
        ReadText: lambda image, page: {"text": image[page], "lines": []},
    }
    run = checked(load("spoken_answer"), {"video": upload(MP4, "video/mp4"), "speak": False}, engines)
    assert run.response.question == question
    assert len(run.graph.of(ReadText)) == len(texts)
    if len(texts) > 1:
        assert_runs_side_by_side(run, "watcher#0/reader#0", f"watcher#0/reader#{len(texts) - 1}")


# ------------------------------------------------------------ vision_chat


@pytest.mark.parametrize("pictures", [0, 1, 3])
def test_vision_chat(load: Load, pictures: int) -> None:
    engines: Engines = {
        ImageEncoder: lambda image, among, **_: {"embeddings": f"{len(image)} of {among}", "times": []},
        LLM: lambda prompt, images, **_: {"text": f"{prompt}: {', '.join(images)}", "tokens": 2},
    }
    files = [upload(png(9, 9 + n)) for n in range(pictures)]
    asked = {"text": "what", **({"image": files[0], "images": files[1:]} if files else {})}
    run = checked(load("vision_chat"), asked, engines)
    assert run.response.text == "what: " + ", ".join(f"{len(png(9, 9 + n))} of {pictures}" for n in range(pictures))
    assert len(run.graph.of(ImageEncoder)) == pictures
    if pictures > 1:
        assert_runs_side_by_side(run, "model#0/eyes#0", "model#0/eyes#1")


def test_vision_chat_about_a_video(load: Load) -> None:
    engines: Engines = {
        ImageEncoder: lambda video, fps, frames, **_: {"embeddings": f"{len(video)} at {fps}", "times": [0.5, frames]},
        LLM: lambda prompt, videos, times, **_: {"text": f"{prompt}: {videos} {times}", "tokens": 2},
    }
    file = b"\0\0\0\x18ftypisom" + bytes(12)
    run = checked(load("vision_chat"), {"text": "what", "video": upload(file)}, engines)
    assert run.response.text == "what: ['24 at 2.0'] [[0.5, 16.0]]"


# ------------------------------------------------------------ model_arena


@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_model_arena(load: Load, pictures: int) -> None:
    engines: Engines = {
        ImageEncoder: lambda image, adapter, **_: {
            "embeddings": f"{len(image)} for {adapter or 'the first'}",
            "times": [],
        },
        LLM: lambda prompt, images, **_: {"text": f"{prompt}: {', '.join(images)}", "tokens": 2},
    }
    files = [upload(png(9, 9 + n)) for n in range(pictures)]
    asked = {"text": "what", **({"image": files[0], "images": files[1:]} if files else {})}
    run = checked(load("model_arena"), asked, engines)
    answers = run.response.answers
    assert [answer.model for answer in answers] == [f"google/gemma-3-{size}b-it" for size in (4, 12, 27)]
    for answer in answers:
        shown = [f"{len(png(9, 9 + n))} for {answer.model}" for n in range(pictures)]
        assert answer.text == "what: " + ", ".join(shown).replace("google/gemma-3-4b-it", "the first")
    eyes = run.graph.of(ImageEncoder)
    assert len(eyes) == 3 * pictures
    assert len({node.component for node in eyes}) == (1 if pictures else 0)
    assert len({node.component for node in run.graph.of(LLM)}) == 3


# ------------------------------------------------------------ agent


def steps(*made: tuple[str, str]) -> Callable[..., dict[str, Any]]:
    """A model that takes one step for each line of its notes."""

    def engine(prompt: str, json_schema: Any, **_: Any) -> dict[str, Any]:
        assert json_schema["additionalProperties"] is False
        taken = len(prompt.partition("Notes:")[2].split("\n")) - 1
        tool, given = made[min(taken, len(made) - 1)]
        return {"text": json.dumps({"tool": tool, "input": given}), "tokens": 9}

    return engine


@pytest.mark.parametrize(
    ("made", "text", "notes"),
    [
        ([("answer", "hello")], "hello", []),
        (
            [("price", "Apple"), ("price", "pear"), ("calculate", "3*0.4 + 2*0.55"), ("answer", "2.30")],
            "2.30",
            ["price Apple: 0.40", "price pear: 0.55", "calculate 3*0.4 + 2*0.55: 2.30"],
        ),
        ([("calculate", "1/0"), ("answer", "no")], "no", ["calculate 1/0: that is no sum"]),
        ([("calculate", "open('x')"), ("answer", "no")], "no", ["calculate open('x'): that is no sum"]),
        ([("price", "plum")], "I cannot say.", ["price plum: there are apple, pear, melon, lemon"] * 5),
    ],
)
def test_agent(load: Load, made: list[tuple[str, str]], text: str, notes: list[str]) -> None:
    run = checked(load("agent"), {"text": "q"}, {LLM: steps(*made)})
    assert (run.response.text, run.response.notes) == (text, notes)


def test_an_agent_that_cannot_be_read_goes_on(load: Load) -> None:
    cut = '{"tool": "answer", "inp'
    engine = llm(lambda prompt: '{"tool": "answer", "input": "well"}' if "too long" in prompt else cut)
    run = checked(load("agent"), {"text": "q"}, {LLM: engine})
    assert (run.response.text, run.response.notes) == ("well", ["that was too long"])


# ------------------------------------------------------------ loop_until


@pytest.mark.parametrize(
    ("answers", "passed"),
    [
        (["Paris."], True),
        (["It is Paris, as all know.", "Paris."], True),
        (["One two three four five", "One two three four", "One two three"], True),
        (["One two three four five", "", "One two three four"], False),
    ],
)
def test_loop_until(load: Load, answers: list[str], passed: bool) -> None:
    def answer(prompt: str, temperature: float, **_: Any) -> dict[str, Any]:
        assert prompt == "q\nAnswer in 3 words or fewer."
        return {"text": answers[int(temperature * 2)], "tokens": 1}

    run = checked(load("loop_until"), {"text": "q", "words": 3}, {LLM: answer})
    assert (run.response.tries, run.response.passed) == (answers, passed)
    assert run.response.text == (answers[-1] if passed else min(answers, key=len))
    assert len(run.graph.nodes) == len(answers)


@pytest.mark.parametrize("words", [0, 201, "many"])
def test_loop_until_refuses(load: Load, words: Any) -> None:
    with pytest.raises(BadInput, match="words"):
        load("loop_until").request({"text": "q", "words": words})


# ------------------------------------------------------------ debate


@pytest.mark.parametrize(
    ("rulings", "winner"),
    [
        (["Ann is right.", "Ann"], "Ann"),
        (["Bob", "Ann", "Ann!"], "Ann"),
        (["Ann", "Bob", "Ann"], "Ann"),
        (["Both", "Neither", "Ann and Bob"], "nobody"),
        (["", "Bob", "Bob"], "Bob"),
    ],
)
def test_debate(load: Load, rulings: list[str], winner: str) -> None:
    def answer(prompt: str) -> str:
        *heard, task = prompt.split("\n")
        if task.startswith("Who is right"):
            return rulings[int(heard[1][-1]) // 2 - 1]
        return f" speech {int(heard[0][-1]) + 1 if heard else 1}\n"

    run = checked(load("debate"), {"claim": "c"}, {LLM: llm(answer)})
    turns = [("Ann", "Bob")[i % 2] for i in range(2 * len(rulings))]
    assert run.response.speeches == [f"{name}: speech {i + 1}" for i, name in enumerate(turns)]
    assert run.response.winner == winner
    assert len(run.graph.nodes) == 3 * len(rulings)
    assert_uses(run, LLM(dtype="float32"), LLM(dtype="bfloat16"))


# ------------------------------------------------------------ image_generation


@pytest.mark.parametrize(("guidance", "read"), [(None, ["a cat", "dogs"]), (3.0, ["a cat", "dogs"]), (1.0, ["a cat"])])
def test_image_generation(load: Load, guidance: float | None, read: list[str]) -> None:
    def draw(prompt: Any, negative: Any, seed: int, steps: int, **_: Any) -> dict[str, Any]:
        told = [{"step": step + 1, "of": steps, "preview": b""} for step in range(steps)]
        return {"image": f"{prompt} {negative} {seed}".encode(), "progress": told}

    engines: Engines = {PromptEncoder: lambda prompt: {"embeddings": prompt}, ImageGenerator: draw}
    asked = {"prompt": "a cat", "negative_prompt": "dogs", "seed": 5, "steps": 2, "guidance": guidance}
    run = checked(load("image_generation"), asked, engines)
    assert run.response.image == f"a cat {'dogs' if len(read) > 1 else None} 5".encode()
    assert len(run.response.progress) == 2
    assert len(run.graph.of(PromptEncoder)) == len(read)
    drawn = checked(load("image_generation"), {"prompt": "a cat"}, engines)
    assert str(drawn.response.seed).encode() in drawn.response.image


# ------------------------------------------------------------ video_generation


def test_video_generation(load: Load) -> None:
    def film(prompt: Any, negative: Any, seed: int, rate: int, **_: Any) -> dict[str, Any]:
        told = [{"step": 1, "of": 1, "preview": b""}]
        return {"video": f"{prompt} {negative} {seed} {rate}".encode(), "progress": told}

    engines: Engines = {PromptEncoder: lambda prompt: {"embeddings": prompt}, VideoGenerator: film}
    run = checked(load("video_generation"), {"prompt": "a cat", "negative_prompt": "dogs", "rate": 8}, engines)
    assert run.response.video == f"a cat dogs {run.response.seed} 8".encode()
    run = checked(load("video_generation"), {"prompt": "a cat", "guidance": 1.0, "seed": 3}, engines)
    assert run.response.video == b"a cat None 3 16"


# ------------------------------------------------------------ omni


@pytest.mark.parametrize("audio", [None, wav()])
@pytest.mark.parametrize("speak", [True, False])
def test_omni(load: Load, audio: bytes | None, speak: bool) -> None:
    def thinker(prompt: str, audio: list[str], speak: bool, **_: Any) -> dict[str, Any]:
        text = f"{prompt} {audio}"
        return {"text": text, "rows": text.split() if speak else [], "tokens": 2}

    engines = {
        OmniEar: lambda audio: {"rows": "heard"},
        Thinker: thinker,
        Talker: lambda rows, **_: {"codes": rows[::-1], "count": len(rows)},
        Vocoder: lambda codes, **_: {"audio": " ".join(codes).encode(), "samples": 0},
    }
    asked = {"text": "hello", "speak": speak} | ({} if audio is None else {"audio": upload(audio)})
    run = checked(load("omni"), asked, engines)
    heard = [] if audio is None else ["heard"]
    assert run.response.text == f"hello {heard}"
    assert run.response.speech == (f"{heard} hello".encode() if speak else b"")
    assert len(run.graph.nodes) == 1 + (audio is not None) + 2 * speak


# ------------------------------------------------------------ pick_tool


@pytest.mark.parametrize(
    ("plan", "tool", "text"),
    [
        (" 17 * 23 = 381", "calculator", "391"),
        ("calculate (2 + 3) * 4.5", "calculator", "22.5"),
        ("10 / 4 / 5", "calculator", "0.5"),
        ("123456 * 789", "calculator", "97406784"),
        ("Good morning.", "voice", "Good morning."),
        ("Good evening.", "mind", "re: read good morning"),
        ("1 / 0 = ?", "mind", "re: read good morning"),
        ("2 ** 99999999", "mind", "re: read good morning"),
        ("about 100 (or 08 + 1)", "mind", "re: read good morning"),
        (".", "mind", "re: read good morning"),
        ("", "mind", "re: read good morning"),
    ],
)
def test_pick_tool(load: Load, plan: str, tool: str, text: str) -> None:
    def answer(prompt: str, system: str, **_: Any) -> dict[str, Any]:
        return {"text": plan if system else f"re: {prompt}", "tokens": 1}

    run = checked(load("pick_tool"), {"text": "read good morning"}, {LLM: answer, TextToSpeech: speak})
    assert (run.response.tool, run.response.text) == (tool, text)
    assert run.response.speech == (b"GOOD MORNING." if tool == "voice" else b"")
    assert len(run.graph.nodes) == (1 if tool == "calculator" else 2)


# ------------------------------------------------------------ map_reduce


def pages_of(count: int) -> Engines:
    return {
        CountPages: lambda image: {"pages": count},
        ReadText: lambda image, page: {"text": f"page {page} " * 300, "lines": []},
        LLM: llm(lambda prompt: f"{prompt.count('page')} times page, {len(prompt)} characters"),
    }


@pytest.mark.parametrize("count", [1, 2, 7])
def test_map_reduce(load: Load, count: int) -> None:
    run = checked(load("map_reduce"), {"image": upload(TIFF, "image/tiff")}, pages_of(count))
    assert run.response.pages == [f"page {n} " * 300 for n in range(count)]
    assert int(run.response.summary.split()[-2]) < 2_100
    assert [n.inputs.get("page", 0) for n in run.graph.of(ReadText)] == list(range(count))
    assert_uses(run, CountPages, LLM)
    if count > 1:
        assert_runs_side_by_side(run, "reader#0", f"reader#{count - 1}")


def test_map_reduce_of_too_many_pages(load: Load) -> None:
    with pytest.raises(ValueError, match="201 pages; 200 can be read"):
        run_recorded(load("map_reduce"), {"image": upload(TIFF, "image/tiff")}, pages_of(201))
