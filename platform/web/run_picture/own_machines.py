"""What each of somebody's machines does now, and what it has given so far."""

from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from accounts.machine_control import NO_CONTROL, Control, controls_of
from accounts.models import Machine, Person
from accounts.selectors import machines_of
from coordination import presence
from coordination.presence import AUXILIARY, RELAY, TRAINER, OnlinePeer
from peer_agent.machine.resting import in_words as reason_in_words
from peer_agent.protocol.errors import Fault
from peer_agent.protocol.messages.machine import Why
from runs.access import helped_runs, listed_runs
from runs.ledger.totals import in_words
from runs.models import Run
from runs.states import HOSTED

MOST_CHOICES = 50  # of runs to move to
MOST_RUNS = 500  # in which a machine is looked for, the newest first


class OwnMachine(NamedTuple):
    """A row. `run` is where it is now; `given` is over all runs."""

    machine: Machine
    run: Run | None
    state: str
    is_online: bool
    speed: str
    samples: int
    averaged: str
    control: Control

    @property
    def is_paused(self) -> bool:
        """Whether its owner has paused it, be it there or not."""
        return self.control.wanted.pause

    @property
    def asked(self) -> str:
        """What it was asked for and has not heard yet; nothing where it has, or is not there to hear it."""
        control = self.control
        if control.report is None or control.is_heard:
            return ""
        if control.wanted.move_to:
            return _("Moving to another run…")
        if control.wanted.finish:
            return _("Finishing…")
        return _("Pausing…") if control.wanted.pause else _("Applying new limits…")

    @property
    def could_not(self) -> str:
        """The error for which it did not move, with its number."""
        code = self.control.report.could_not if self.control.report is not None else ""
        return f"{Fault(code, '').title} ({code})" if code else ""


def own_machines(person: Person) -> list[OwnMachine]:
    """All machines of a person, those in use first."""
    machines = list(machines_of(person))
    runs = {run.pk: run for run in helped_runs(person).filter(state__in=HOSTED).order_by("-created_at")[:MOST_RUNS]}
    mine = {machine.peer_id for machine in machines}
    here: dict[str, tuple[Run, OnlinePeer]] = {}
    for run_id, peers in presence.online_in(runs.values()).items():
        here |= {peer.peer: (runs[run_id], peer) for peer in peers if peer.peer in mine}
    controls = controls_of(machines)
    given = _sums(person.totals.all(), "samples")
    averaged = _sums(person.averaged.all(), "bytes_averaged")
    return [
        _row(
            machine,
            here.get(machine.peer_id),
            given.get(machine.pk, 0),
            averaged.get(machine.pk, 0),
            controls.get(machine.pk, NO_CONTROL),
        )
        for machine in machines
    ]


def runs_to_move_to(person: Person) -> list[Run]:
    """Where a machine of this person might go: open runs on their list, the newest first."""
    open_ones = helped_runs(person).filter(pk__in=listed_runs(person).values("pk"), state__in=HOSTED)
    return list(open_ones.order_by("-created_at").only("slug", "title")[:MOST_CHOICES])


def _sums(rows: QuerySet[Any], name: str) -> dict[UUID, int]:
    return dict(rows.order_by().values("machine").annotate(given=Sum(name)).values_list("machine", "given"))


def _row(
    machine: Machine, here: tuple[Run, OnlinePeer] | None, samples: int, averaged: int, control: Control
) -> OwnMachine:
    run, peer = here if here is not None else (None, None)
    if control.rest:  # its host may show it for a moment longer
        reason = reason_in_words(control.rest)
        state = reason if control.rest.why is Why.PAUSED else _("On hold. %(reason)s") % {"reason": reason}
        return OwnMachine(machine, run, state, True, "", samples, in_words(averaged), control)  # noqa: FBT003
    speed = _speed(peer) if peer is not None and peer.samples_per_s else ""
    return OwnMachine(machine, run, _state(run, peer), peer is not None, speed, samples, in_words(averaged), control)


def _speed(peer: OnlinePeer) -> str:
    return _("%(number)s samples/s") % {"number": f"{peer.samples_per_s:,.1f}"}


def _state(run: Run | None, peer: OnlinePeer | None) -> str:
    """One word or two for what it does."""
    if run is None or peer is None:
        return pgettext("what a machine does", "Offline")
    if peer.role == RELAY:
        return pgettext("what a machine does", "Relaying")
    if peer.role == AUXILIARY:
        return pgettext("what a machine does", "Averaging")
    if run.state == Run.State.PAUSED:
        return _("Waiting: the run is paused")
    assert peer.role == TRAINER, peer.role
    return (
        pgettext("what a machine does", "Loading the model")
        if peer.state == "syncing"
        else pgettext("what a machine does", "Training")
    )
