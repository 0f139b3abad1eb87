"""Becomes another program that dies with its parent: `python -I -S exec_guard.py <parent pid> <program> <args...>`.

A separate small process instead of a preexec_fn, which may deadlock in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit("the parent died first")
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
