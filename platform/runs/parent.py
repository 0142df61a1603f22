"""Limits that a child process imposes on itself: it ends with its parent and uses only part of the machine.

Only the standard library is imported, since children import this module. Programs started with `--attached` watch their
standard input instead. Children cannot, because their standard input carries a secret.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_S = 0.5
MOST_FILES = 1024


def leave_with_parent() -> None:
    """Exit when the parent process ends. On Linux, the kernel does this; elsewhere, a thread checks twice a second."""
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)


def take_at_most(memory_bytes: int) -> None:
    """Limit this process's memory and open files, and write no core dumps. Do nothing on Windows.

    The limit counts what the process allocates, but not the program files and data files that it maps. An uploaded file
    can make a library allocate any amount: a tokenizer of a few kilobytes can double its input thirty times.
    """
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
