"""Text in pictures by RapidOCR on ONNX Runtime: finds lines, turns them upright, reads them."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.media.images import Pixels, decode_image, picture_of
from components.ocr.rows import in_rows
from cornstalk.errors import EngineError, SetupError
from cornstalk.task import UnitTask
from cornstalk.tasks.reading import ReadText

_LONGEST_SIDE: Final = 1280
"""Pixels of the larger side in which lines are looked for; they are read as large as they are."""
_SHAPE: Final = 100
"""Times that one side of a picture may be as long as the other."""


class RapidOcr:
    """Pictures are decoded side by side; the model takes one at a time. Memory grows with the picture: see the docs."""

    slots = 2

    def __init__(self, task: UnitTask) -> None:
        assert isinstance(task, ReadText)
        self._task = task
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="ocr")
        self._one = Lock()  # it keeps state while it reads
        self._model: Any = None
        self._longest = 0.0

    async def start(self) -> None:
        try:
            await self._off_loop(self._load)
        except ImportError as error:
            raise SetupError(f"{self._task.model} needs {error.name}: pip install 'cornstalk[models]'") from error

    def _load(self) -> None:
        weights = models.ocr(self._task.model)
        from rapidocr import RapidOCR

        runtime = "EngineConfig.onnxruntime"
        self._model = RapidOCR(
            params={
                "Global.log_level": "critical",  # it warns of every picture without text
                "Det.limit_type": "max",
                "Det.limit_side_len": _LONGEST_SIDE,
                f"{runtime}.intra_op_num_threads": 1,
                f"{runtime}.inter_op_num_threads": 1,
                **{f"{part}.model_path": str(path) for part, path in weights.items()},
            }
        )
        self._read(np.full((64, 64, 3), 255, np.uint8))  # weights are loaded at first use
        self._model(np.full((48, 64, 3), 255, np.uint8), use_det=False)
        self._longest = 0.0

    async def stop(self) -> None:
        self._threads.shutdown()

    def stats(self) -> dict[str, float]:
        return {"batch": 1.0, "longest_step_s": self._longest}

    async def run(self, call: Call) -> dict[str, Any]:
        pixels = await self._off_loop(_decoded, call.inputs["image"], call.inputs["page"])
        call.check()
        lines = await self._off_loop(self._read, pixels)
        rows = in_rows([line["box"] for line in lines])
        text = "\n".join(" ".join(lines[index]["text"] for index in row) for row in rows)
        return {"text": text, "lines": [lines[index] for row in rows for index in row]}

    async def _off_loop(self, work: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _read(self, pixels: Pixels) -> list[dict[str, Any]]:
        with self._one:
            began = time.perf_counter()
            found = self._model(np.ascontiguousarray(pixels[:, :, ::-1]), use_det=True)  # it takes BGR
            self._longest = max(self._longest, time.perf_counter() - began)
        if found.boxes is None or found.txts is None:
            return []
        pieces = zip(found.txts, found.scores, found.boxes, strict=True)
        return [{"text": text, "score": float(score), "box": box.tolist()} for text, score, box in pieces]


def _decoded(image: bytes | np.ndarray[Any, Any], page: int) -> Pixels:
    pixels = decode_image(image, page=page) if isinstance(image, bytes) else picture_of(image, page)
    height, width = pixels.shape[:2]
    if max(height, width) > _SHAPE * min(height, width):
        raise EngineError(f"the picture is {width} x {height}, too narrow to hold text", "bad_image")
    return pixels
