"""What happened in a run, a line at a time, in words for people."""

from runs.models import Happening, Run


def tell(*, run: Run, kind: str, text: str) -> None:
    """Add a line to the run's timeline."""
    Happening.objects.create(run=run, kind=kind, text=text[:300])
