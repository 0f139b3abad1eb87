"""Where the services and examples lie: in a wheel under cornstalk/_services, in a checkout beside cornstalk/.

The only place that touches the import path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import cornstalk

PACKAGE: Final = Path(cornstalk.__file__).resolve().parent
CHILD: Final = PACKAGE / "cli" / "child.py"


def services_root() -> Path:
    """The folder that holds broker/, gateway/ and the others."""
    inside = PACKAGE / "_services"
    return inside if inside.is_dir() else PACKAGE.parent


def examples() -> Path:
    """The folder with the example apps."""
    return services_root() / "examples"


def use_services() -> None:
    """Makes `import broker`, `import gateway`, ... work in this process, whatever the current folder holds."""
    root = str(services_root())
    if sys.path[:1] != [root]:
        sys.path.insert(0, root)


def child_env(base: Mapping[str, str]) -> dict[str, str]:
    """Environment in which a child finds the services and this very cornstalk."""
    roots = [str(services_root()), str(PACKAGE.parent)]
    rest = [p for p in base.get("PYTHONPATH", "").split(os.pathsep) if p and p not in roots]
    return {**base, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*roots, *rest]))}


def child_argv(module: str, *args: str) -> list[str]:
    """Command line of a module that dies with this process. The current folder is not on its import path."""
    return [sys.executable, "-P", str(CHILD), str(os.getpid()), module, *args]
