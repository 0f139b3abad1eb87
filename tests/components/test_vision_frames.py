"""Frames of videos for models that see: those that transformers would choose, prepared as it does."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from components.encoder.families import TOWERS, towers_of
from components.media.video import Sampled, choose_frames
from cornstalk.errors import EngineError, SetupError
from cornstalk.tasks import ImageEncoder
from tests.components.tiny_vl import noise, tiny_vl
from tests.components.whole_vl import video_processor

pytestmark = pytest.mark.models


class Told:
    def __init__(self, total: int, fps: float) -> None:
        self.total_num_frames, self.fps = total, fps


def towers(total: int, rate: float, fps: float, most: int) -> dict[str, list[int]]:
    return {name: kind.chosen(object.__new__(kind), total, rate, fps, most) for name, kind in TOWERS.items()}


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 400), st.sampled_from([5.0, 23.976, 25.0, 30.0, 60.0]), st.sampled_from([0.5, 1.0, 2.0, 7.0]))
@example(2, 25.0, 2.0)
@example(3, 25.0, 2.0)
def test_frames_are_those_that_transformers_chooses(total: int, rate: float, fps: float) -> None:
    most = 16
    found = towers(total, rate, fps, most)
    for name in ("qwen2_5_vl", "qwen2_vl", "qwen3_vl"):
        processor = video_processor(name)
        processor.max_frames = most
        chosen = processor.sample_frames(Told(total, rate), fps=fps).tolist()
        # where a quotient rounds up it names one frame behind the last, and would fail
        assert found[name] == [number for number in chosen if number < total], name
    for name in ("llava_onevision", "internvl"):
        wanted = min(max(int(total / rate * fps), 1), most, total)
        expected = video_processor(name).sample_frames(Told(total, rate), num_frames=wanted).tolist()
        assert found[name] == expected[:wanted], name
    assert found["gemma3"] == found["llava_onevision"]


def test_a_video_of_one_frame_is_that_frame() -> None:
    assert set(map(tuple, towers(1, 25.0, 2.0, 16).values())) == {(0,)}


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl", "llava_onevision", "internvl"])
def test_frames_are_prepared_as_transformers_prepares_them(tmp_path: Path, kind: str) -> None:
    (tower,) = towers_of(ImageEncoder(model=str(tiny_vl(tmp_path, kind)), dtype="float32")).values()
    processor = video_processor(kind)
    for count, high, wide in ((4, 64, 96), (3, 60, 92), (4, 20, 300), (6, 200, 130), (1, 56, 56)):
        if kind == "qwen3_vl" and count == 1:
            continue  # transformers refuses it
        frames = np.stack([noise(i, high, wide) for i in range(count)])
        made = processor(videos=[torch.from_numpy(frames).permute(0, 3, 1, 2)], do_sample_frames=False)
        expected = made["pixel_values_videos"]
        arrays = tower.film(Sampled(frames, [0.5 * i for i in range(count)], 0.5 * count)).arrays
        pixels = next(arrays[name] for name in ("pixel_values", "frames", "tiles") if name in arrays)
        expected = np.asarray(expected if "qwen" in kind else expected[0])
        assert np.allclose(pixels.reshape(expected.shape), expected, atol=1e-5)
        if "qwen" in kind:
            assert arrays["image_grid_thw"].tolist() == made["video_grid_thw"].tolist()


def test_limits_of_a_folder_for_videos_hold(tmp_path: Path) -> None:
    folder = tiny_vl(tmp_path, "qwen3_vl")
    frames = Sampled(np.stack([noise(i, 128, 192) for i in range(4)]), [0.0, 0.5, 1.0, 1.5], 2.0)
    limits = folder / "video_preprocessor_config.json"

    def grid() -> list[int]:
        (tower,) = towers_of(ImageEncoder(model=str(folder), dtype="float32")).values()
        return list(tower.film(frames).bucket)

    assert grid() == [2, 4, 8]
    limits.write_text('{"size": {"shortest_edge": 4096, "longest_edge": 24576}}')  # of all frames
    assert grid() == [2, 4, 6]
    limits.unlink()
    assert grid() == [2, 6, 10]  # as pictures, of up to 28 x 28 x 24 pixels
    limits.write_text("{")
    with pytest.raises(SetupError, match="does not say how videos are prepared"):
        grid()


def test_a_file_without_frames_is_no_video() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        out.start_encoding()
    with pytest.raises(EngineError) as caught:
        choose_frames(file.getvalue(), lambda total, rate: [0])
    assert caught.value.engine_code == "bad_video"
