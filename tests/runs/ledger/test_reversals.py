"""Credit is taken back by further rows, in all totals, and the audit finds it correct."""

import pytest
from django.db import IntegrityError, connection, transaction

from accounts.days import day_of
from accounts.models import Person
from coordination import store
from peer_agent.protocol.coordinator.events import Checked, Reverse
from peer_agent.protocol.log.records import Unit
from runs.ledger.audit import audit
from runs.ledger.standings import leaderboard
from runs.ledger.totals import reverse
from runs.models import Check, DailyTotal, Head, LedgerEntry, LogEntry, MachineTotal, Member
from runs.people import given_to
from tests.coordination.example_run import Example, example_run, next_record, sealed
from tests.runs.factories import Owned, owned

pytestmark = pytest.mark.django_db


@pytest.fixture
def example() -> Example:
    example = example_run(visibility="public")
    for step in range(3):
        record = next_record(
            example.run,
            (example.teo, (Unit(0, 0, 8 * step, 8 * step + 4),)),
            (example.noor, (Unit(0, 1, 4 * step, 4 * step + 2),)),
        )
        assert store.commit(example.run, sealed(record), record, duration_s=1.0, attempts=1) == "committed"
    return example


def totals_of(machine: Owned) -> tuple[int, int, int, int, int]:
    total = MachineTotal.objects.get(machine=machine.machine)
    return total.samples, total.tokens, total.credit, total.rounds, total.person_rounds


def days_of(person: Person) -> dict[int, tuple[int, int]]:
    return {row.day: (row.samples, row.tokens) for row in DailyTotal.objects.filter(person=person)}


def reverse_since(example: Example, machine: Owned, after: int) -> None:
    store.reverse_credit(example.run, Head.objects.get().fence, Reverse(machine.machine.peer_id, after, "for a reason"))


def test_credit_after_the_last_check_is_taken_back_in_all_totals(example: Example) -> None:
    before, others = totals_of(example.teo), totals_of(example.noor)
    reverse_since(example, example.teo, after=1)
    assert totals_of(example.teo) == tuple(value // 3 for value in before)
    assert totals_of(example.noor) == others
    today = day_of(LogEntry.objects.first().at)  # type: ignore[union-attr]
    assert days_of(example.teo.machine.person) == {today: (4, 28)}
    rows = list(LedgerEntry.objects.exclude(reverses=None).order_by("pk"))
    assert [(row.step, row.samples, row.reason) for row in rows] == [(2, -4, "for a reason"), (3, -4, "for a reason")]
    assert [(row.reverses.step, row.reverses.samples) for row in rows if row.reverses] == [(2, 4), (3, 4)]
    assert Check.objects.get().passed == 0


def test_taking_back_twice_changes_nothing(example: Example) -> None:
    reverse_since(example, example.teo, after=1)
    once = totals_of(example.teo), LedgerEntry.objects.count()
    reverse_since(example, example.teo, after=1)
    assert (totals_of(example.teo), LedgerEntry.objects.count()) == once


def test_a_row_can_be_reversed_only_once(example: Example) -> None:
    reverse_since(example, example.teo, after=2)
    row = LedgerEntry.objects.exclude(reverses=None).get()
    row.pk, row._state.adding = None, True
    with pytest.raises(IntegrityError), transaction.atomic():
        row.save()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_round_of_a_person_with_two_machines_is_taken_back_once(*, is_first: bool) -> None:
    example = example_run()
    second = owned(example.teo.machine.person)
    record = next_record(example.run, (example.teo, (Unit(0, 0, 0, 4),)), (second, (Unit(0, 0, 4, 8),)))
    store.commit(example.run, sealed(record), record, duration_s=1.0, attempts=1)
    reverse_since(example, example.teo if is_first else second, after=0)
    assert totals_of(example.teo)[3:] == ((0, 0) if is_first else (1, 1))
    assert totals_of(second)[3:] == ((1, 0) if is_first else (0, 0))
    assert audit(example.run)["faults"] == []


def test_audit_finds_the_books_correct_afterwards(example: Example) -> None:
    assert audit(example.run)["faults"] == []
    reverse_since(example, example.teo, after=1)
    found = audit(example.run)
    assert (found["faults"], found["reversed_samples"], found["ledger_samples"]) == ([], 8, 10)
    again = audit(example.run)
    assert (again["faults"], again["read"], again["reversed_samples"]) == ([], 0, 8)


@pytest.mark.parametrize(
    ("column", "fault"), [("samples", "takes back other credit"), ("credit", "takes back other credit")]
)
def test_audit_finds_a_false_reversal(example: Example, column: str, fault: str) -> None:
    reverse_since(example, example.teo, after=2)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE runs_ledgerentry SET {column} = {column} - 1 WHERE reverses_id IS NOT NULL")
    assert any(fault in each for each in audit(example.run)["faults"])


def test_deposed_host_takes_nothing_back(example: Example) -> None:
    fence = Head.objects.get().fence - 1
    with pytest.raises(store.Stale):
        store.reverse_credit(example.run, fence, Reverse(example.teo.machine.peer_id, 0, ""))
    with pytest.raises(store.Stale):
        store.check(example.run, fence, Checked(example.teo.machine.peer_id, 3, 1))
    assert not LedgerEntry.objects.exclude(reverses=None).exists()
    assert not Check.objects.exists()


def test_checks_are_known_to_the_next_host(example: Example) -> None:
    peer = example.teo.machine.peer_id
    for passed, index in ((1, 1), (2, 3)):
        store.check(example.run, Head.objects.get().fence, Checked(peer, index, passed))
    record = store.load(example.run, 9).reliabilities[peer]
    assert (record.audits_passed, record.checked_index) == (2, 3)
    assert store.load(example.run, 9).contributed == {"Teo": 3, "Noor": 3}


def check(example: Example, machine: Owned, index: int) -> None:
    store.check(example.run, Head.objects.get().fence, Checked(machine.machine.peer_id, index, 1))


def test_samples_since_the_last_check_are_provisional(example: Example) -> None:
    teo, noor = (given_to(each.machine.person, example.run) for each in (example.teo, example.noor))
    assert (teo.provisional, noor.provisional) == (12, 6)
    check(example, example.teo, 2)
    teo = given_to(example.teo.machine.person, example.run)
    assert (teo.checked, teo.provisional) == (8, 4)
    reverse_since(example, example.teo, after=2)
    teo = given_to(example.teo.machine.person, example.run)
    assert (teo.checked, teo.provisional) == (8, 0)
    example.run.visibility = "private"
    assert given_to(example.noor.machine.person, example.run).provisional == 0


def test_leaderboard_says_how_much_is_checked(example: Example) -> None:
    check(example, example.noor, 1)
    check(example, example.teo, 3)
    check(example, example.teo, 2)  # an older audit that is answered late
    assert {line.name: line.checked for line in leaderboard(example.run)} == {"Teo": 12, "Noor": 2}
    assert audit(example.run)["checked_samples"] == 14


def test_checked_samples_of_undone_steps_are_taken_back(example: Example) -> None:
    check(example, example.teo, 3)
    with transaction.atomic():
        reverse(example.run, LedgerEntry.objects.filter(entry__index__gt=1), "undone")
    assert MachineTotal.objects.get(machine=example.teo.machine).checked == 4
    assert audit(example.run, is_full=True)["faults"] == []


def test_audit_finds_a_false_number_of_checked_samples(example: Example) -> None:
    check(example, example.teo, 2)
    MachineTotal.objects.filter(machine=example.teo.machine).update(checked=9)
    (fault,) = audit(example.run, is_full=True)["faults"]
    assert fault.endswith("9 samples count as checked, but 8 were")


def test_audit_lists_machines_without_a_check_for_long(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.ledger.audit.OVERDUE", 2)
    check(example, example.teo, 2)
    noor = {"machine": example.noor.machine.pk.hex, "person": "Noor", "samples": 6}
    assert audit(example.run)["overdue"] == [noor]
    check(example, example.noor, 1)
    assert audit(example.run)["overdue"] == [noor | {"samples": 4}]
    Member.objects.create(run=example.run, person=example.noor.machine.person)
    assert audit(example.run)["overdue"] == []


def test_reversal_returns_the_samples_of_what_it_took(example: Example) -> None:
    with transaction.atomic():
        assert reverse(example.run, LedgerEntry.objects.filter(step=1), "a test") == 6
        assert reverse(example.run, LedgerEntry.objects.all(), "a test") == 12
    assert sum(LedgerEntry.objects.values_list("samples", flat=True)) == 0
