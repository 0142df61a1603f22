"""What happened in a run, a line at a time, in words for people."""

from runs.models import Happening, Run


def quoted(text: str) -> str:
    """Somebody's words within ours, in quotes; right-to-left writing stays within them (Unicode isolates)."""
    return f"“\u2068{text}\u2069”"


def tell(*, run: Run, kind: str, text: str) -> None:
    """Add a line to the run's timeline."""
    Happening.objects.create(run=run, kind=kind, text=text[:300])


def tell_once(*, run: Run, kind: str, text: str) -> None:
    """The same for what is tried again and again: the timeline says it once."""
    if not run.happenings.filter(kind=kind, text=text[:300]).exists():
        tell(run=run, kind=kind, text=text)
