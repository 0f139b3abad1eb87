"""What records a pass: this package and the Python under it. Another one might go another way through the same app."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from cornstalk.errors import OtherRelease
from cornstalk.messages import Graph

SDK: Final = "0.1"
"""Major and minor of the package's version. What a patch release changes must not change how a pass is recorded."""
RELEASE: Final = f"cornstalk {SDK}, Python {sys.version_info.major}.{sys.version_info.minor}"


def check_release(graphs: Iterable[Graph]) -> None:
    """Raises OtherRelease if another release recorded one of them (notes/record.md rule 25)."""
    for graph in graphs:
        if graph.release not in ("", RELEASE):
            raise OtherRelease(
                f"the request was begun by {graph.release}, and this is {RELEASE}: only a gateway of that release can "
                "go on with it; without one it ends at its deadline"
            )
