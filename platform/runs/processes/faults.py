"""What goes wrong with long work, as a numbered error in a row."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peer_agent.protocol.errors import Fault, Problem, codes
from runs.processes.child import ChildStopped
from runs.processes.disk_full import disk_fault

logger = logging.getLogger(__name__)


@contextmanager
def faults_to(record: Callable[[Fault], None], code: str) -> Iterator[None]:
    """Record what goes wrong in the block; `code` numbers what nobody foresaw. A site that goes down is no fault."""
    try:
        yield
    except ChildStopped:
        logger.info("stopped with the site; done again at the next start")
    except Problem as problem:
        logger.warning("%s", problem)
        # A child's words name where its disk is.
        record(Fault.of("E328") if problem.fault.code == codes.DISK_FULL else problem.fault)
    except Exception as error:
        logger.exception("unforeseen")
        # What else the error says may name this machine's folders; everybody reads the page.
        record(disk_fault(error) or Fault.of(code, reason=type(error).__name__))
