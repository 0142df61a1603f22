"""Who is in a run now: written by its host, read by pages."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TypedDict
from uuid import UUID

from django.utils import timezone

from coordination.models import Presence
from peer_agent.protocol.coordinator.state import RunState
from runs.models import Run

FRESH = timedelta(seconds=15)  # an older picture is of a host that is gone


class Seen(TypedDict):
    """One member as a page shows it. `done` is samples in its accumulator."""

    peer: str
    name: str
    role: str
    state: str
    done: int
    samples_per_s: float


class Step(TypedDict):
    """How far the current step is, in samples."""

    phase: str
    done: int
    target: int
    void_rounds: int


def online(run: Run) -> list[Seen]:
    """Members of the run, trainers first; empty where no host drives it."""
    return online_in([run]).get(run.pk, [])


def online_in(runs: Iterable[Run]) -> dict[UUID, list[Seen]]:
    """The same for many runs, in one query; those that no host drives are left out."""
    fresh = Presence.objects.filter(run__in=[run.pk for run in runs], at__gte=timezone.now() - FRESH)
    return {row.run_id: list(row.members) for row in fresh}


def current_step(run: Run) -> Step | None:
    """The step being made, None where no host drives the run."""
    row = Presence.objects.filter(run=run, at__gte=timezone.now() - FRESH).defer("members").first()
    return Step(phase=row.phase, done=row.done, target=row.target, void_rounds=row.void_rounds) if row else None


def picture_of(state: RunState) -> tuple[Step, list[Seen]]:
    """What pages show of a coordinator's state. For a moment after each commit everybody is one step behind."""
    members = sorted(state.members.values(), key=lambda p: (not p.trains, p.role, p.person, p.peer))
    seen = [
        Seen(
            peer=member.peer,
            name=member.person,
            role=member.role.value,
            state="syncing" if member.trains and member.step < max(state.step - 1, 0) else "ready",
            done=member.done_samples,
            samples_per_s=round(member.samples_per_s, 2),
        )
        for member in members
    ]
    done = sum(member["done"] for member in seen)
    step = Step(phase=state.phase.value, done=done, target=state.recipe.target_batch, void_rounds=state.void_rounds)
    return step, seen


def show(run: Run, step: Step, members: list[Seen]) -> None:
    """Write who is there, for pages to read."""
    Presence.objects.update_or_create(run=run, defaults={**step, "members": members})
