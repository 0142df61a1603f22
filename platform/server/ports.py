"""Ports: a free one, or a numbered error that names who has it."""

import contextlib
import errno
import socket

import psutil

from peer_agent.protocol.errors import Problem


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that holds the port (0: any free one) from now on. Raises Problem E401, E405."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise Problem.of("E405", name="--host", reason=error.strerror or error) from error
    bound = socket.socket(family, kind)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(1024)  # another may bind the same address until somebody listens
    except OSError as error:
        bound.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise Problem.of("E401", port=port, holder=holder_of(port)) from error
        raise Problem.of("E405", name="--host", reason=error.strerror or error) from error
    return bound


def check_port(host: str, port: int) -> None:
    """Raises Problem E401 where the port is taken."""
    bound_socket(host, port).close()


def holder_of(port: int) -> str:
    """Who listens on the port, as far as this user may know."""
    with contextlib.suppress(psutil.Error, PermissionError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,) and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "the system" if port < 1024 else "another program"
