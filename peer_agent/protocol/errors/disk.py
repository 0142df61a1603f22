"""A disk that is full or cannot be written, as the numbered error that it is."""

from collections.abc import Iterator
from contextlib import contextmanager

from peer_agent.protocol.errors import Fault, Problem


def disk_fault(path: object, error: OSError) -> Fault:
    """E106 for the disk of `path`, in the system's words."""
    return Fault.of("E106", path=path, reason=error.strerror or error)


@contextmanager
def disk_errors(path: object) -> Iterator[None]:
    """What goes wrong inside is the disk's doing. Raises Problem E106."""
    try:
        yield
    except OSError as error:
        raise Problem(disk_fault(path, error)) from error
