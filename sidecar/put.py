"""One put: a block is granted on entering, and committed on leaving."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from sidecar.dtypes import nbytes_of
from sidecar.messages import Owner
from sidecar.tensors import Block

if TYPE_CHECKING:
    from sidecar.client import SidecarClient


class Put(AbstractAsyncContextManager[Block]):
    """An exception, or the death of this process, gives the block back."""

    def __init__(
        self,
        client: SidecarClient,
        owner: Owner,
        output: str,
        index: int,
        shape: tuple[int, ...],
        dtype: str,
        expires: float,
        wait: float,
    ) -> None:
        self._client = client
        self._header = owner, output, index, dtype, shape
        self._nbytes = nbytes_of(dtype, shape)
        self._expires, self._wait = expires, wait

    async def __aenter__(self) -> Block:
        self._link = self._client.live()
        space = await self._client.grant(self._link, self._nbytes, self._wait)
        self._block = Block(self._link, space, *self._header, self._nbytes)
        return self._block

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._block.abort()
        else:
            self._block.commit(self._expires)
