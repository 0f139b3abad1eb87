"""Text in pictures by RapidOCR on ONNX Runtime: finds lines, turns them upright, reads them."""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

import numpy as np

from components import models
from components.engine import Call
from components.loaded import Loaded
from components.media.images import Pixels, decode_image, picture_of
from components.ocr.rows import in_rows
from cornstalk.errors import EngineError
from cornstalk.tasks.reading import ReadText

_LONGEST_SIDE: Final = 1280
"""Pixels of the larger side in which lines are looked for; they are read as large as they are."""
_SHAPE: Final = 100
"""Times that one side of a picture may be as long as the other."""


class RapidOcr(Loaded[ReadText]):
    """Pictures are decoded side by side; the model takes one at a time. Memory grows with the picture: see the docs."""

    slots = threads = 2
    _model: Any

    def __init__(self, task: ReadText) -> None:
        super().__init__(task)
        self._one = Lock()  # it keeps state while it reads

    def load(self) -> None:
        weights = models.ocr(self.task.model)
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

    async def run(self, call: Call) -> dict[str, Any]:
        pixels = await self.off_loop(_decoded, call.inputs["image"], call.inputs["page"])
        call.check()
        lines = await self.off_loop(self._read, pixels)
        rows = in_rows([line["box"] for line in lines])
        text = "\n".join(" ".join(lines[index]["text"] for index in row) for row in rows)
        return {"text": text, "lines": [lines[index] for row in rows for index in row]}

    def _read(self, pixels: Pixels) -> list[dict[str, Any]]:
        with self._one, self.step():
            found = self._model(np.ascontiguousarray(pixels[:, :, ::-1]), use_det=True)  # it takes BGR
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
