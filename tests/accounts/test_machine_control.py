"""The instructions that an owner gives to a machine, and the reports that the machine sends back."""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from django.utils import timezone
from msgspec.structs import replace

from accounts import machine_control as control
from accounts.models import Machine, MachineControl
from peer_agent.machine.resting import Rest
from peer_agent.protocol.messages import Instructions, MachineReport
from peer_agent.protocol.messages.machine import OwnerLimits, Why
from tests.averaging.rounds import RUN
from tests.runs.factories import Owned


@pytest.fixture
def machine(laptop: Owned) -> Machine:
    return laptop.machine


def said(revision: int, why: Why = Why.WORKS, **more: object) -> MachineReport:
    return MachineReport(run=RUN, revision=revision, why=why, **more)  # type: ignore[arg-type]


def report(machine: Machine, what: MachineReport) -> control.Taken:
    return control.take_report(machine_id=machine.peer_id, report=what)


def test_each_change_is_a_new_revision_on_what_was_wanted(machine: Machine) -> None:
    assert control.control_of(machine) == control.NO_CONTROL
    limits = OwnerLimits(threads=2, programs=("steam",))
    control.change(machine=machine, to=lambda wanted: replace(wanted, limits=limits))
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True))
    assert control.control_of(machine).wanted == Instructions(revision=2, pause=True, limits=limits)
    assert control.controls_of([machine])[machine.pk].wanted.revision == 2


def test_a_machine_has_heard_what_it_answers(machine: Machine) -> None:
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True))
    assert report(machine, said(-1)).wanted.pause
    assert not control.control_of(machine).is_heard
    report(machine, said(1, Why.PAUSED))
    now = control.control_of(machine)
    assert now.is_heard
    assert now.rest == Rest(Why.PAUSED)


def test_what_is_to_be_done_once_is_asked_of_one_process(machine: Machine) -> None:
    control.change(machine=machine, to=lambda wanted: replace(wanted, finish=True, move_to="other", pause=True))
    assert report(machine, said(-1)).wanted.finish, "it has not heard it"
    assert control.control_of(machine).wanted.finish
    report(machine, said(1))
    wanted = control.control_of(machine).wanted
    assert (wanted.finish, wanted.move_to, wanted.pause, wanted.revision) == (False, "", True, 1)


def test_what_was_wanted_meanwhile_stays(machine: Machine) -> None:
    control.change(machine=machine, to=lambda wanted: replace(wanted, finish=True))
    control.change(machine=machine, to=lambda wanted: replace(wanted, move_to="other"))
    report(machine, said(1))
    assert control.control_of(machine).wanted.move_to == "other"


def test_a_report_ends_with_its_link_and_not_with_an_older_one(machine: Machine) -> None:
    first = report(machine, said(0, Why.BATTERY))
    second = report(machine, said(0, Why.PAUSED))
    control.forget_report(machine_id=machine.peer_id, at=first.at)
    assert control.control_of(machine).rest == Rest(Why.PAUSED)
    control.forget_report(machine_id=machine.peer_id, at=second.at)
    assert control.control_of(machine).report is None


def test_a_report_of_a_site_that_died_grows_old(machine: Machine) -> None:
    report(machine, said(0, Why.PAUSED))
    MachineControl.objects.update(reported_at=timezone.now() - control.FRESH - timedelta(seconds=1))
    assert control.control_of(machine).report is None


def test_the_same_word_is_not_written_again_and_again(machine: Machine) -> None:
    first = report(machine, said(0))
    assert report(machine, said(0)).at == first.at
    assert report(machine, said(0, month_bytes=5)).at > first.at


def test_changes_are_found_by_when_they_were_made(machine: Machine) -> None:
    before = timezone.now()
    assert control.changed_since(before) == {}
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True))
    assert control.changed_since(before) == {machine.peer_id: Instructions(revision=1, pause=True)}
    assert control.changed_since(timezone.now() + timedelta(seconds=1)) == {}


def test_a_pause_ends_by_the_sites_clock_even_if_nobody_is_there(machine: Machine) -> None:
    """No process has to act at that time, so a restart of the site or of the agent changes nothing."""
    until = int(timezone.now().timestamp()) + 7200
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True, pause_until=until))
    assert report(machine, said(1, Why.PAUSED)).wanted.pause
    with patch.object(timezone, "now", return_value=datetime.fromtimestamp(until, UTC)):
        assert report(machine, said(1, Why.PAUSED)).wanted == Instructions(revision=2)
        assert not control.control_of(machine).is_heard
        limits = OwnerLimits(threads=2)
        control.change(machine=machine, to=lambda wanted: replace(wanted, limits=limits, finish=True))
        assert report(machine, said(2)).wanted == Instructions(revision=3, limits=limits, finish=True)


def test_what_is_done_after_a_pause_is_over_is_not_asked_again(machine: Machine) -> None:
    gone = int(timezone.now().timestamp()) - 1
    paused = {"pause": True, "pause_until": gone, "finish": True}
    control.change(machine=machine, to=lambda wanted: replace(wanted, **paused))
    assert report(machine, said(-1)).wanted == Instructions(revision=2, finish=True)
    report(machine, said(2))
    assert control.control_of(machine).wanted == Instructions(revision=2)
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True))
    assert control.control_of(machine).wanted.revision == 3, "the machine ignores what is not newer"


def test_a_row_of_another_version_wants_nothing(machine: Machine) -> None:
    control.change(machine=machine, to=lambda wanted: replace(wanted, pause=True))
    MachineControl.objects.update(instructions='{"type":"Instructions","revision":1,"unknown":1}')
    assert control.control_of(machine).wanted == Instructions(revision=1)
    MachineControl.objects.update(instructions="[")
    assert control.control_of(machine).wanted == Instructions(revision=1)
