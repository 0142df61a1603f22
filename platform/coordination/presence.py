"""Who is in a run now: written by its host, read by pages."""

from datetime import timedelta
from typing import TypedDict

from django.utils import timezone

from coordination.models import Presence
from peer_agent.protocol.coordinator.state import RunState
from peer_agent.protocol.credentials import Role
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
    row = Presence.objects.filter(run=run, at__gte=timezone.now() - FRESH).first()
    return list(row.members) if row else []


def current_step(run: Run) -> Step | None:
    """The step being made, None where no host drives the run."""
    row = Presence.objects.filter(run=run, at__gte=timezone.now() - FRESH).first()
    return Step(phase=row.phase, done=row.done, target=row.target, void_rounds=row.void_rounds) if row else None


def picture_of(state: RunState) -> tuple[Step, list[Seen]]:
    """What pages show of a coordinator's state."""
    members = sorted(state.members.values(), key=lambda p: (p.role is Role.RELAY, p.person, p.peer))
    seen = [
        Seen(
            peer=member.peer,
            name=member.person,
            role=member.role.value,
            state="ready" if member.role is Role.RELAY or member.step == state.step else "syncing",
            done=member.done_samples,
            samples_per_s=round(member.samples_per_s, 2),
        )
        for member in members
    ]
    done = sum(member["done"] for member in seen)
    step = Step(phase=state.phase.value, done=done, target=state.recipe.target_batch, void_rounds=state.void_rounds)
    return step, seen


def show(run: Run, state: RunState) -> None:
    """Write the picture."""
    step, members = picture_of(state)
    Presence.objects.update_or_create(run=run, defaults={**step, "members": members})
