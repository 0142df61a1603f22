"""Averaged bytes: added with each commit, listed by person, and not ranked."""

from typing import Any

import pytest
from msgspec.structs import replace

from accounts.models import Machine
from coordination import store
from coordination.hosts import claims
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.log.records import Record, Unit
from runs.ledger.standings import leaderboard, totals
from runs.ledger.totals import AveragedLine, averaged_lines, in_words
from runs.models import AveragedTotal
from tests.coordination.example_run import UNIT, Example, example_run, next_record, sealed
from tests.runs.factories import ELEMENTS, Owned, owned

pytestmark = pytest.mark.django_db
SECOND = Unit(0, 0, 2, 4)


@pytest.fixture
def example() -> Example:
    found = example_run()
    claims.claim(found.run, "host")
    return found


def reduced_by(record: Record, reducer: Owned | str) -> Record:
    peer = reducer if isinstance(reducer, str) else reducer.machine.peer_id
    return replace(record, spans=tuple(replace(span, reducer=peer) for span in record.spans))


def commit(example: Example, record: Record) -> None:
    assert store.commit(example.run, sealed(record), record, duration_s=1.0, attempts=1) == "committed"


def vector(example: Example) -> int:
    """Return the size in bytes of one encoded gradient, here a single chunk."""
    return encoded_size(example.run.parsed_recipe.codec_up, ELEMENTS)


def test_a_commit_adds_what_its_reducers_averaged(example: Example) -> None:
    nas = owned(example.noor.machine.person, "nas")
    both = next_record(example.run, (example.teo, (UNIT,)), (example.noor, (SECOND,)))
    commit(example, reduced_by(both, nas))
    assert averaged_lines(example.run) == [AveragedLine("Noor", 2 * vector(example), is_ranked=True)]
    commit(example, reduced_by(next_record(example.run, (example.teo, (Unit(0, 0, 4, 6),))), nas))
    assert averaged_lines(example.run) == [AveragedLine("Noor", 3 * vector(example), is_ranked=True)]
    assert AveragedTotal.objects.count() == 1


def test_a_commit_that_was_not_written_adds_nothing(example: Example) -> None:
    nas = owned(example.noor.machine.person, "nas")
    record = reduced_by(next_record(example.run, (example.teo, (UNIT,))), nas)
    commit(example, record)
    commit(example, record)
    stale = replace(record, fence=record.fence + 9)
    assert store.commit(example.run, sealed(stale), stale, duration_s=1.0, attempts=1) == "stale"
    assert averaged_lines(example.run) == [AveragedLine("Noor", vector(example), is_ranked=False)]


def test_a_reducer_that_the_site_does_not_know_costs_no_commit(example: Example) -> None:
    commit(example, reduced_by(next_record(example.run, (example.teo, (UNIT,))), "ee" * 16))
    assert averaged_lines(example.run) == []


def test_who_only_averages_is_in_no_count_and_has_no_rank(example: Example) -> None:
    commit(example, reduced_by(next_record(example.run, (example.teo, (UNIT,))), owned(example.run.organizer, "nas")))
    assert [line.name for line in leaderboard(example.run)] == ["Teo"]
    assert (totals(example.run).people, totals(example.run).machines) == (1, 1)
    assert [line.name for line in averaged_lines(example.run)] == ["Amina"]


def test_a_relay_has_a_total_and_no_line(example: Example) -> None:
    relay = owned(example.run.organizer, "relay", Machine.Kind.RELAY)
    commit(example, reduced_by(next_record(example.run, (example.teo, (UNIT,))), relay))
    assert AveragedTotal.objects.get(run=example.run).machine == relay.machine
    assert averaged_lines(example.run) == [], "relays are the site's own"


def test_a_total_stays_at_what_its_column_holds(example: Example) -> None:
    nas = owned(example.noor.machine.person, "nas")
    facts: dict[str, Any] = {"machine": nas.machine, "person": nas.machine.person}
    AveragedTotal.objects.create(run=example.run, bytes_averaged=2**63 - 2, **facts)
    commit(example, reduced_by(next_record(example.run, (example.teo, (UNIT,))), nas))
    assert averaged_lines(example.run) == [AveragedLine("Noor", 2**63 - 1, is_ranked=False)]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, ""),
        (100, "0.1\N{NO-BREAK SPACE}kB"),
        (999_000, "999.0\N{NO-BREAK SPACE}kB"),
        (1_000_000, "1.0\N{NO-BREAK SPACE}MB"),
        (2_340_000_000, "2.3\N{NO-BREAK SPACE}GB"),
        (5e15, "5,000.0\N{NO-BREAK SPACE}TB"),
    ],
)
def test_bytes_as_people_read_them(size: int, words: str) -> None:
    assert in_words(size) == words
