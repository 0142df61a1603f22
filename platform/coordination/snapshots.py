"""A replica's state is believed when its digest is the one that most replicas reported at that step."""

from django.db import IntegrityError, transaction

from peer_agent.protocol.errors import Fault
from runs.models import LogEntry, Run, Snapshot
from runs.services import request_heldout, request_thinning


def offer_snapshot(
    *, run: Run, step: int, index: int, log_digest: str, state_digest: str, file: str, size: int
) -> Fault | None:
    """Keep an uploaded state that matches the log; E310 where it does not, or where nobody has reported on it yet."""
    entry = LogEntry.objects.filter(run=run, index=index, step=step, digest=log_digest).first()
    if entry is None or not entry.state_digest or entry.state_digest != state_digest:
        return Fault.of("E310", step=step)
    try:
        with transaction.atomic():
            Snapshot.objects.create(
                run=run, index=index, step=step, digest=log_digest, state_digest=state_digest, file=file, size=size
            )
            request_heldout(run=run)
            request_thinning(run=run)
    except IntegrityError:
        pass  # another keeper handed in the same state first
    return None
