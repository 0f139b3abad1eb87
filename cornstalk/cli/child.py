"""Runs a module as the main program and dies with its parent: `python -P child.py PARENT_PID MODULE ARGS...`.

Survives nothing on purpose: when the parent ends, in whatever way, this process is killed at once. Durable state is in
NATS, so a kill is always safe. Standard library only, for this file is run before anything else is imported.
"""

import contextlib
import ctypes
import os
import runpy
import select
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Ends this process when its parent has ended, by two ways: the kernel's signal, and a wait on the parent's pidfd.

    The signal comes at once but is tied to the parent's thread and lost on some execs; the wait has neither weakness.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(parent)
        if os.getppid() == parent:
            threading.Thread(target=_await_death, args=(watched,), daemon=True, name="parent-watch").start()
            return
    sys.exit("the parent died first")


def _await_death(watched: int) -> None:
    select.select([watched], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parent, module, *args = sys.argv[1:]
    die_with(int(parent))
    sys.argv = [module, *args]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
