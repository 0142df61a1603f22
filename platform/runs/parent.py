"""Exit when the process that started this one is gone, even if it was killed.

Only the standard library is imported, since children import this module. Programs started with `--attached` watch their
standard input instead. Children cannot, because their standard input carries a secret.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
POLL_S = 0.5


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
