"""The owner's pages pause, move and limit a machine."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts import machine_control
from accounts.models import Machine, MachineControl, Person
from peer_agent.protocol.messages import MachineReport
from peer_agent.protocol.messages.machine import DAY_MINUTES, LEAST_DUTY, Blind, Hours, OwnerLimits, Why
from runs.models import Run
from tests.averaging.rounds import RUN
from tests.runs.factories import Owned
from tests.web.browsing import as_, page
from web.pages.accounts.machine_limits import LimitsForm, filled_in


@pytest.fixture
def browser(laptop: Owned) -> Client:
    return as_(laptop.machine.person)


def wanted(machine: Machine) -> Any:
    return machine_control.control_of(machine).wanted


def say(machine: Machine, revision: int, why: Why = Why.WORKS, **more: Any) -> None:
    report = MachineReport(run=RUN, revision=revision, why=why, **more)
    machine_control.take_report(machine_id=machine.peer_id, report=report)


def press(browser: Client, machine: Machine, **form: str) -> None:
    assert browser.post(f"/machines/{machine.pk}/", form).status_code == 302


def test_pause_and_resume(browser: Client, laptop: Owned) -> None:
    machine = laptop.machine
    say(machine, 0)
    press(browser, machine, pause="1")
    assert wanted(machine).pause
    assert "Pausing…" in page(browser.get("/machines/"))
    say(machine, 1, Why.PAUSED)
    said = page(browser.get("/machines/"))
    assert "Paused by you." in said
    assert "Pausing…" not in said
    assert ">Resume<" in said
    press(browser, machine, resume="1")
    assert not wanted(machine).pause
    assert ">Pause<" in page(browser.get("/machines/"))


def test_a_machine_that_is_away_says_that_it_stays_paused(browser: Client, laptop: Owned) -> None:
    press(browser, laptop.machine, pause="1")
    said = page(browser.get("/machines/"))
    assert "Paused until you resume it." in said
    assert "Pausing…" not in said, "nobody is there to hear it"


def test_a_pause_may_end_by_itself(browser: Client, laptop: Owned) -> None:
    machine, began = laptop.machine, int(timezone.now().timestamp())
    press(browser, machine, pause="2h")
    until = wanted(machine).pause_until
    assert began + 7200 <= until <= began + 7210
    shown = f'Paused until <time class="clock" datetime="{datetime.fromtimestamp(until, UTC).isoformat()}">'
    assert f"Offline. {shown}" in page(browser.get("/machines/"))
    say(machine, 1, Why.PAUSED, detail="23:59")
    said = page(browser.get("/machines/"))
    assert (shown in said, "23:59" in said) == (True, False), "the reader's time zone, not the machine's"
    MachineControl.objects.update(instructions=f'{{"pause":true,"pause_until":{began}}}')
    said = page(browser.get("/machines/"))
    assert ("Resuming…" in said, ">Pause<" in said) == (True, True)
    for form, pause in (({"pause": "open"}, True), ({"pause": "9999h"}, True), ({"resume": "1"}, False)):
        press(browser, machine, **form)
        assert (wanted(machine).pause, wanted(machine).pause_until) == (pause, 0)


@pytest.mark.parametrize(
    ("run", "place"), [("proverbs", "/runs/proverbs/"), ("//evil.example", "/machines/"), ("", "/machines/")]
)
def test_a_reader_of_a_run_returns_to_it(browser: Client, laptop: Owned, run: str, place: str) -> None:
    answer = browser.post(f"/machines/{laptop.machine.pk}/", {"pause": "1h", "run": run})
    assert (answer.status_code, answer.headers["Location"]) == (302, place)


def test_what_a_run_takes_is_told_to_its_owner(browser: Client, laptop: Owned) -> None:
    say(laptop.machine, 0, sent_bytes=2_700_000_000)
    assert "up so far" not in page(browser.get("/machines/"))
    say(laptop.machine, 0, sent_bytes=2_700_000_000, energy_wh=412)
    assert ">About 0.4 kWh and 2.7 GB up so far</a>" in page(browser.get("/machines/"))


def test_why_it_rests_is_told_whatever_the_program_is_called(browser: Client, laptop: Owned) -> None:
    say(laptop.machine, 0, Why.PROGRAM, detail="<script>x")
    assert "On hold. &lt;script&gt;x is running." in page(browser.get("/machines/"))


def test_finish_and_move(browser: Client, laptop: Owned, run: Run) -> None:
    machine = laptop.machine
    press(browser, machine, finish="1")
    assert wanted(machine).finish
    press(browser, machine, move=run.slug)
    assert (wanted(machine).finish, wanted(machine).move_to) == (False, run.slug)
    press(browser, machine, pause="1")
    assert wanted(machine).move_to == ""
    say(machine, 3, could_not="E306")
    assert "Couldn't move: Run is finished (E306)" in page(browser.get("/machines/"))


@pytest.mark.parametrize("slug", ["", "../../x", "A B", "x" * 81, "é"])
def test_what_is_no_run_moves_nothing(browser: Client, laptop: Owned, slug: str) -> None:
    browser.post(f"/machines/{laptop.machine.pk}/", {"move": slug})
    assert wanted(laptop.machine).revision == 0


FULL = {
    "threads": "3",
    "duty_percent": "60",
    "memory_gb": "2.5",
    "disk_gb": "10",
    "up_mbps": "1.5",
    "down_mbps": "20",
    "month_gb": "100",
    "idle_minutes": "10",
    "pause_on_battery": "on",
    "programs": "steam\n\n Blender.exe \nsteam",
    "from_0": "22:00",
    "to_0": "07:00",
    "from_5": "00:00",
    "to_5": "23:59",
}
EVERY = {"from_all": "08:00", "to_all": "20:00"}


def test_limits_are_kept_and_shown_again(browser: Client, laptop: Owned) -> None:
    address = f"/machines/{laptop.machine.pk}/limits/"
    assert browser.post(address, FULL).status_code == 302
    limits = OwnerLimits(
        threads=3,
        duty_percent=60,
        memory_mb=2500,
        disk_gb=10,
        up_kbps=1500,
        down_kbps=20_000,
        month_gb=100,
        hours=(Hours(0, 22 * 60, 7 * 60), Hours(5, 0, DAY_MINUTES)),
        idle_minutes=10,
        pause_on_battery=True,
        programs=("steam", "Blender.exe"),
    )
    assert wanted(laptop.machine).limits == limits
    shown = browser.get(address).content.decode()
    for value in ("2.5", "22:00", "07:00", "23:59", "1.5"):
        assert f'value="{value}"' in shown
    press(browser, laptop.machine, pause="1")
    assert wanted(laptop.machine).limits == limits, "a pause changes nothing of them"
    assert browser.post(address, {}).status_code == 302
    assert wanted(laptop.machine).limits == OwnerLimits()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", "0"),
        ("threads", "many"),
        ("duty_percent", str(LEAST_DUTY - 1)),
        ("duty_percent", "101"),
        ("memory_gb", "nan"),
        ("up_mbps", "0.01"),
        ("month_gb", "1" + "0" * 30),
        ("idle_minutes", "-1"),
        ("programs", "\n".join(map(str, range(21)))),
        ("programs", "x" * 81),
        ("from_3", "08:00"),
        ("to_3", "08:00"),
        ("from_all", "08:00"),
        ("to_all", "08:00"),
        ("from_3", "25:00"),
        ("to_3", "25:00"),
    ],
)
def test_what_makes_no_sense_is_told_at_its_field(browser: Client, laptop: Owned, field: str, value: str) -> None:
    answer = browser.post(f"/machines/{laptop.machine.pk}/limits/", {field: value})
    assert answer.status_code == 400
    assert 'class="error"' in answer.content.decode()
    assert wanted(laptop.machine).revision == 0


def test_hours_of_every_day_stand_for_days_without_their_own(browser: Client, laptop: Owned) -> None:
    address = f"/machines/{laptop.machine.pk}/limits/"
    assert "<details><summary" in browser.get(address).content.decode()
    every_day = {"from_all": "22:00", "to_all": "07:00"}
    assert browser.post(address, every_day).status_code == 302
    night = (22 * 60, 7 * 60)
    assert wanted(laptop.machine).limits.hours == tuple(Hours(day, *night) for day in range(7))
    shown = browser.get(address).content.decode()
    assert (shown.count('value="22:00"'), "<details><summary" in shown) == (1, True)
    assert browser.post(address, {**every_day, "from_6": "00:00", "to_6": "23:59"}).status_code == 302
    assert wanted(laptop.machine).limits.hours[5:] == (Hours(5, *night), Hours(6, 0, DAY_MINUTES))
    shown = browser.get(address).content.decode()
    assert (shown.count('value="22:00"'), "<details open><summary" in shown) == (6, True)


@given(st.dictionaries(st.sampled_from(sorted({**FULL, **EVERY})), st.text(max_size=200)))
def test_whatever_is_sent_is_limits_or_is_refused(fields: dict[str, str]) -> None:
    form = LimitsForm(fields)
    if form.is_valid():
        limits = form.limits()
        again = LimitsForm({name: value for name, value in filled_in(limits).items() if value})
        assert again.is_valid(), again.errors
        assert again.limits() == limits


def test_what_the_machine_cannot_tell_is_said(browser: Client, laptop: Owned) -> None:
    say(laptop.machine, 0, blind=(Blind.IDLE,))
    assert "cannot tell whether someone is using it" in page(browser.get(f"/machines/{laptop.machine.pk}/limits/"))


def test_others_and_relays_and_revoked_ones_have_no_such_page(browser: Client, laptop: Owned, stranger: Person) -> None:
    address = f"/machines/{laptop.machine.pk}/limits/"
    assert as_(stranger).get(address).status_code == 404
    assert as_(stranger).post(address, FULL).status_code == 404
    assert as_(stranger).post(f"/machines/{laptop.machine.pk}/", {"pause": "1"}).status_code == 404
    Machine.objects.filter(pk=laptop.machine.pk).update(kind=Machine.Kind.RELAY)
    assert browser.get(address).status_code == 404
    assert not re.search(r">Pause<|Limits", page(browser.get("/machines/")))
    assert wanted(laptop.machine).revision == 0
