"""Bytes that no relay needs any more. A finished run has no host, so the sockets of relays say it themselves."""

from datetime import datetime

from django.db.models import OuterRef, Subquery

from coordination.snapshots import as_message
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import RunId
from runs.models import Run, Snapshot

MOST = 1_000  # runs that a relay is told of when it comes: those that were finished last


def settled(since: datetime | None = None) -> list[m.Snapshotted]:
    """Of each run that was finished (since then): up to where the site has verified its model."""
    finished = Run.objects.filter(state=Run.State.FINISHED).order_by("-finished_at")
    if since is not None:
        finished = finished.filter(finished_at__gte=since)
    trusted = Snapshot.objects.filter(run=OuterRef("pk"), state=Snapshot.State.VERIFIED, is_stored=True)
    newest = finished.annotate(newest=Subquery(trusted.order_by("-index").values("pk")[:1]))
    wanted = list(newest.exclude(newest=None).values_list("newest", flat=True)[:MOST])
    return [
        m.Snapshotted(run=RunId(snapshot.run_id.hex), snapshot=as_message(snapshot), keep_after=snapshot.index)
        for snapshot in Snapshot.objects.filter(pk__in=wanted)
    ]
