"""A plugin that vLLM loads in each of its processes: none of them outlives the worker of Cornstalk that started it, and
all know the models that the worker brings.

vLLM's engine core is a process of its own, and so are the workers below it; kill -9 of who started them leaves them
running, with their memory. Does nothing for a vLLM that Cornstalk did not start.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from typing import Final

PARENT: Final = "CORNSTALK_VLLM_PARENT"
"""Process id of the worker, in the environment of all that it starts."""
MODELS: Final = "CORNSTALK_VLLM_MODELS"
"""Which classes take the place of architectures of vLLM, there too: "ARCHITECTURE=module:Class ..."."""
_watched = False


def guard() -> None:
    """Kills this process when the worker is gone. May be called again."""
    global _watched
    parent = int(os.environ.get(PARENT, "0"))
    if not parent:
        return
    know_models()
    if parent == os.getpid() or _watched:
        return
    _watched = True
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return
    threading.Thread(target=_outlive_not, args=(descriptor,), name="worker's life", daemon=True).start()


def know_models() -> None:
    """May be called again; the classes are loaded when they are needed."""
    from vllm import ModelRegistry

    for pair in os.environ.get(MODELS, "").split():
        architecture, _, target = pair.partition("=")
        ModelRegistry.register_model(architecture, target)


def _outlive_not(worker: int) -> None:
    poller = select.poll()
    poller.register(worker, select.POLLIN)
    poller.poll()
    os.kill(os.getpid(), signal.SIGKILL)
