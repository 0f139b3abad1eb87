"""Tasks of the null engine: they read every input byte and answer with a digest. For tests, benchmarks, first steps."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel

from cornstalk.task import UnitTask
from cornstalk.types import Stream, Tensor, Upload


class _Null(UnitTask):
    kind: ClassVar[str] = "null"
    tuning: ClassVar[frozenset[str]] = frozenset({"slots"})
    name: str = "null"
    slots: int = 4  # items at once in one worker


class Null(_Null):
    """Digest of all inputs as a value. `service_ms` is slept.

    `fail` misbehaves on purpose: "raise" and "transient" an EngineError, "bug" another error, "wrong_type" an output
    that is not of its type; "exit", "segv" and "oom" end the worker, the last as the kernel does when memory is short.
    """

    class Out(BaseModel):
        digest: str

    def __call__(
        self,
        *,
        text: str = "",
        texts: list[str] = [],  # noqa: B006
        tensors: list[Tensor] = [],  # noqa: B006
        upload: Upload | None = None,
        service_ms: float = 0.0,
        repeat: int = 1,
        fail: str = "",
    ) -> Out:
        raise NotImplementedError


class NullTensor(_Null):
    """A tensor of `nbytes` bytes (uint8) that follows from the digest of all inputs.

    `fail="diverge"` answers otherwise each time, as an engine must not.
    """

    class Out(BaseModel):
        tensor: Tensor
        digest: str

    def __call__(
        self,
        *,
        text: str = "",
        tensors: list[Tensor] = [],  # noqa: B006
        upload: Upload | None = None,
        nbytes: int = 4096,
        service_ms: float = 0.0,
        fail: str = "",
    ) -> Out:
        raise NotImplementedError


class NullCached(NullTensor):
    """A NullTensor that is computed once for equal inputs, as an encoder is."""

    cached: ClassVar[bool] = True


class NullStream(_Null):
    """A text stream of `pieces` digests of 16 characters, or one for each 16 characters of `source`, as they arrive.

    `fail="raise"` ends it with an EngineError after its pieces.
    """

    class Out(BaseModel):
        text: Stream[str]
        pieces: int

    def __call__(
        self,
        *,
        text: str = "",
        tensors: list[Tensor] = [],  # noqa: B006
        source: Stream[str] = "",
        pieces: int = 0,
        service_ms: float = 0.0,  # before each piece
        fail: str = "",
    ) -> Out:
        raise NotImplementedError


class NullTensors(_Null):
    """A stream of `pieces` tensors (uint8 [nbytes]), or one for each of `source`, as they arrive; digest of all."""

    class Out(BaseModel):
        tensors: Stream[list[Tensor]]
        digest: str

    def __call__(
        self,
        *,
        text: str = "",
        source: Stream[list[Tensor]] = [],  # noqa: B006
        nbytes: int = 4096,
        pieces: int = 0,
        service_ms: float = 0.0,  # before each
    ) -> Out:
        raise NotImplementedError
