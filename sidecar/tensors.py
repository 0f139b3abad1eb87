"""What the client hands out: a block to write into, and a lease to read from."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from cornstalk.messages import Ref
from sidecar import board, views
from sidecar.errors import Gone, SidecarError
from sidecar.link import Link
from sidecar.messages import Abort, Commit, EndLease, Owner, Space, Tensor
from sidecar.wire import encoded


class Block:
    """A granted block, until it is committed or given back.

    It is never given out again while a view of it lives here, not even after an exception: engine threads that still
    write cannot hurt anybody. Do not write after the commit: a committed tensor is immutable by contract.
    """

    def __init__(
        self,
        link: Link,
        space: Space,
        owner: Owner,
        output: str,
        index: int,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        expires: float,
    ) -> None:
        """All that a commit needs is made here: code that runs after a large copy finds its caches cold.

        Raises Denied for a header that is too long.
        """
        self._link = link
        self._block: Final = space.block
        self.dtype: Final = dtype
        """Its travelling name."""
        self._shape = shape
        self._tensor: Final = Tensor(
            owner.request, owner.node, owner.gen, owner.attempt, output, index,
            link.host, link.epoch, space.arena, space.offset, nbytes, dtype, shape,
        )  # fmt: skip
        self._ref: Final = self._tensor.ref()
        self._digest: Final = board.digest(space.block, self._tensor)
        self._expires: Final = expires
        self._commit: Final = encoded(Commit(space.block, self._tensor, expires, hold=False))
        self._committed = False
        self._root: views.Root | None = link.view(link.own[space.arena], space.offset, nbytes)
        self._array: np.ndarray[Any, Any] | None = None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Writable view; bfloat16 as uint16. Raises Gone after the block was left."""
        if self._array is None:
            self._array = views.as_numpy(self._open(), self.dtype, self._shape, writable=True)
        return self._array

    def torch(self) -> Any:
        """Writable torch.Tensor of the same memory. Raises Gone after the block was left."""
        return views.as_torch(self._open(), self.dtype, self._shape)

    @property
    def ref(self) -> Ref:
        """What readers need. Raises SidecarError before the commit."""
        if not self._committed:
            raise SidecarError("the block is not committed: leave its `async with` first")
        return self._ref

    def commit(self) -> Ref:
        """Raises SidecarDown if the daemon died since the grant."""
        data, views_left = self._commit, self._leave()
        if views_left is not None:
            data = encoded(Commit(self._block, self._tensor, self._expires, hold=True))
            self._link.when_dead(views_left, self._end_hold)
        if self._link.commit(data):  # it is not lost if this process is killed now
            board.seal(self._link.own[self._tensor.arena].seals, self._tensor.offset, self._block, self._digest)
        self._committed = True
        return self._ref

    def abort(self) -> None:
        """Gives the block back uncommitted, once no view of it is left."""
        views_left = self._leave()
        if views_left is not None:
            self._link.when_dead(views_left, self._abort)
        elif not self._link.lost:
            self._abort()

    def _leave(self) -> views.Root | None:
        """Lets go of the own views. The root, if there are others."""
        root = weakref.ref(self._open())
        self._root = self._array = None
        return root()

    def _open(self) -> views.Root:
        if self._root is None:
            raise Gone("this block was left: it is committed or given back")
        return self._root

    def _abort(self) -> None:
        self._link.post(Abort(self._block))

    def _end_hold(self) -> None:
        self._link.post(EndLease(self._block))


class Lease:
    """A committed tensor, in place. Its memory stays as it is until `release` was called and no view is left."""

    def __init__(self, ref: Ref, root: views.Root) -> None:
        self.ref: Final = ref
        self._root: views.Root | None = root
        self._array: np.ndarray[Any, Any] | None = None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """Read-only view: writing raises ValueError. bfloat16 comes as uint16. Raises Gone after `release`."""
        if self._array is None:
            self._array = views.as_numpy(self._open(), self.ref.dtype, self.ref.shape, writable=False)
        return self._array

    def torch(self) -> Any:
        """torch.Tensor of the same memory. Only read it: a write is a SIGSEGV. Raises Gone after `release`."""
        return views.as_torch(self._open(), self.ref.dtype, self.ref.shape)

    def release(self) -> None:
        """Idempotent. The lease ends now, or with the last view that somebody still holds."""
        self._root = self._array = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> views.Root:
        if self._root is None:
            raise Gone("this lease was released")
        return self._root


def shape_of(shape: Sequence[int] | int) -> tuple[int, ...]:
    """Plain ints, whatever numpy or torch gave."""
    return (int(shape),) if isinstance(shape, int) else tuple(map(int, shape))
