"""The forking process: `python -m tests.warm.server SOCKET`. It ends when its standard input closes.

An order is one message: JSON, and the descriptors that become standard input, output and error. The answers on the
same connection are the new process's id and, once it ends, its exit status.
"""

import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import Any, NoReturn

ORDER = 1 << 17  # bytes, at most


def serve(listener: socket.socket) -> None:
    """Load what every process needs, then fork for each order until standard input closes."""
    import torch  # noqa: F401 - loaded here once
    from transformers import AlbertForMaskedLM, GPT2LMHeadModel  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the processes that watch forked ones
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            watch(connection)
        connection.close()


def watch(connection: socket.socket) -> NoReturn:
    """Fork the process, and send its id and later its exit status. If the process is attached, end it when the client
    disconnects.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, descriptors, _, _ = socket.recv_fds(connection, ORDER, 3)
    order = json.loads(message)
    pid = os.fork()
    if pid == 0:
        connection.close()
        become(order, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    asker: list[socket.socket | int] = [connection] if order["attached"] else []
    while ended not in select.select([*asker, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
        asker = []
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    connection.sendall(f"{status}\n".encode())
    os._exit(0)


def become(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Run a module as a program, as `python -m` would."""
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = [order["module"], *order["arguments"]]
    status = 0
    try:
        runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - told on standard error, as Python would
        sys.excepthook(*sys.exc_info())
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen()
        serve(listener)
