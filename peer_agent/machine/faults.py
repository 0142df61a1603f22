"""Conversion of exceptions into numbered errors."""

import errno

from peer_agent.machine.language import sanitize, translated
from peer_agent.protocol.errors import Fault, Problem, disk_fault
from peer_agent.protocol.errors.translation import in_words

DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO})


def faults_of(error: BaseException) -> list[Fault]:
    """Return the numbered errors in an exception or a group. Return [] if any of its parts has no number."""
    match error:
        case Problem():
            return [error.fault]
        case OSError(errno=int(number)) if number in DISK:
            return [disk_fault(error.filename or "your files", error)]
        case BaseExceptionGroup():
            parts = [faults_of(part) for part in error.exceptions]
            return [fault for part in parts for fault in part] if all(parts) else []
    return []


def sanitize_fault(fault: Fault) -> Fault:
    """Return the fault with its text made safe to print in a terminal, since the text may come from other machines."""
    return Fault(*(_sanitize_lines(part) for part in (fault.code, fault.cause, fault.means, fault.remedy)))


def _sanitize_lines(text: str) -> str:
    return "\n".join(sanitize(line) for line in text.split("\n"))


def in_readers_words(fault: Fault) -> Fault:
    """Return the fault in the reader's language, if the catalogue has a translation."""
    return in_words(fault, translated)
