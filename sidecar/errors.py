"""Everything `sidecar` raises. Standalone: services translate what a client may see. None of them ever comes with data.

SidecarError
├── Full               no room before the deadline; try again later
│   └── TooBig         could never fit
├── Gone               the block is freed, or was never committed: its lineage must run again
│   └── StaleEpoch     it lived in an earlier life of the sidecar
├── Denied             not a valid header, not the caller's block, or not the caller's user
├── Timeout            no answer before the deadline
├── NodeLost           the host that holds the tensor cannot be reached
├── SidecarDown        no daemon behind the socket; the client reconnects by itself
└── StartFailed        the daemon cannot start: socket in use, path too long, too little memory
"""

from __future__ import annotations

from typing import ClassVar, Final


class SidecarError(Exception):
    """Base of all errors of this package. `code` is its name on the socket."""

    code: ClassVar[str] = "internal"


class Full(SidecarError):
    """Raised when no space came free before the deadline. Nothing was reserved."""

    code = "full"


class TooBig(Full):
    """Raised at once when the tensor is larger than this producer may ever hold."""

    code = "too_big"


class Gone(SidecarError):
    """Raised when a Ref names no committed block, and for a view that its owner gave back."""

    code = "gone"


class StaleEpoch(Gone):
    """Raised when the sidecar that held the block has died since."""

    code = "stale_epoch"


class Denied(SidecarError):
    """Raised when a header is malformed, or names what is not the caller's."""

    code = "denied"


class Timeout(SidecarError):
    """Raised when the sidecar did not answer before the deadline."""

    code = "timeout"


class NodeLost(SidecarError):
    """Raised when the tensor lies on a host that cannot be reached."""

    code = "node_lost"


class SidecarDown(SidecarError):
    """Raised while no daemon is behind the socket, and for operations that its death interrupted."""

    code = "down"


class StartFailed(SidecarError):
    """Raised when the daemon cannot serve; says what to change."""

    code = "start_failed"


BY_CODE: Final[dict[str, type[SidecarError]]] = {
    kind.code: kind
    for kind in (SidecarError, Full, TooBig, Gone, StaleEpoch, Denied, Timeout, NodeLost, SidecarDown, StartFailed)
}
"""The error that a code on the socket stands for."""
