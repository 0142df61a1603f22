"""Exact data accounting (rule 11): after any sequence of requests, every data position is in exactly one place."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.coordinator.leases import GIVE_UP, SHARDS_AHEAD, LeaseBook, Source, restored
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Unit
from peer_agent.protocol.messages.to_peer import MOST_COMING
from peer_agent.protocol.recipe import MOST_SOURCES

SIZES = (40, 13, 2)
A, B, C = (AccumulatorId(letter * 32) for letter in "abc")
names = st.sampled_from([AccumulatorId(letter * 32) for letter in "abcd"])


def book(**given: object) -> LeaseBook:
    made = LeaseBook(SIZES, 4)
    made.raise_marks([Mark(0, 0, 40), Mark(0, 1, 13), Mark(0, 2, 2)])
    for name, value in given.items():
        setattr(made, name, value)
    return made


class Book(RuleBasedStateMachine):
    """Grants, returns, settlements and restarts in any order. `marks` and `used` stand in for the database."""

    def __init__(self) -> None:
        super().__init__()
        self.book = LeaseBook(SIZES, 4, self.sources())
        self.marks: dict[tuple[int, int], int] = {}
        self.used: set[Unit] = set()
        self.lost: set[Unit] = set()

    def sources(self) -> list[Source]:
        """Return no sources, so all shards form a single source."""
        return []

    @rule(ahead=st.dictionaries(names, st.integers(1, 60)))
    def reserve(self, ahead: dict[AccumulatorId, int]) -> None:
        marks = self.book.wanted_marks(ahead)
        for mark in marks:
            self.marks[mark.epoch, mark.shard] = max(mark.mark, self.marks.get((mark.epoch, mark.shard), 0))
        self.book.raise_marks(marks)

    @rule(name=names, samples=st.integers(1, 20))
    def grant(self, name: AccumulatorId, samples: int) -> None:
        units = self.book.grant(name, samples)
        assert self.book.holds(name, units)
        assert not self.used & set(units)

    @rule(name=names, machines=st.integers(0, 4))
    def coming(self, name: AccumulatorId, machines: int) -> None:
        coming = self.book.coming(name, machines)
        assert len(coming) == len(set(coming)) <= (1 + SHARDS_AHEAD) * len(self.book.sources)

    @rule(name=names, data=st.data())
    def mark_used(self, name: AccumulatorId, data: st.DataObject) -> None:
        held = sorted(self.book.held.get(name, set()))
        units = data.draw(st.lists(st.sampled_from(held), unique=True)) if held else []
        self.book.mark_used(name, units)
        self.used.update(units)

    @rule(name=names)
    def take_back(self, name: AccumulatorId) -> None:
        held = sum(unit.samples for unit in self.book.held.get(name, set()))
        assert self.book.take_back(name) == held
        assert self.book.held.get(name, set()) == set()

    @rule(name=names)
    def fail(self, name: AccumulatorId) -> None:
        self.lost |= set(self.book.failed(name, list(self.book.held.get(name, set())), name))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        marks = [Mark(*place, mark) for place, mark in self.marks.items()]
        held = {name: sorted(units) for name, units in self.book.held.items() if units}
        self.book = restored(SIZES, 4, data.draw(st.permutations(marks)), self.used | self.lost, sources=self.sources())
        for name in data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []:
            assert self.book.claim(name, held[name])
            assert self.book.claim(name, held[name]), "saying it twice changes nothing"

    @precondition(lambda self: self.book.orphans)
    @rule()
    def release(self) -> None:
        before = sum(unit.samples for unit in self.book.orphans)
        assert self.book.release_orphans() == before

    @invariant()
    def every_position_is_in_one_place(self) -> None:
        granted = {
            (epoch, shard, place)
            for (epoch, shard), count in self.book.granted.items()
            for place in range(min(count, SIZES[shard]))
        }
        held = [unit for units in self.book.held.values() for unit in units]
        everything = [*held, *self.book.returned, *self.book.orphans, *self.used, *self.lost]
        found = [(u.epoch, u.shard, place) for u in everything for place in range(u.start, u.stop)]
        assert len(found) == len(set(found)), "in two places"
        assert set(found) == granted, "lost"

    @invariant()
    def marks_never_trail_grants(self) -> None:
        assert all(self.marks.get(place, 0) >= count for place, count in self.book.granted.items())


class MixedBook(Book):
    def sources(self) -> list[Source]:
        return [Source((0, 2), 0.23), Source((1,), 0.77)]

    @rule(first=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    def mix(self, first: float) -> None:
        self.book.mix([first, 1 - first])

    @invariant()
    def a_shard_is_used_up_before_its_source_begins_anew(self) -> None:
        for source in self.book.sources:
            for shard in source.shards:
                used = [self.book.granted.get((epoch, shard), 0) for epoch in range(source.epoch)]
                assert used == [SIZES[shard]] * source.epoch


SETTINGS = settings(max_examples=60, stateful_step_count=30)
TestBook = Book.TestCase
TestBook.settings = SETTINGS
TestMixedBook = MixedBook.TestCase
TestMixedBook.settings = SETTINGS


def dealt(leases: LeaseBook, samples: int) -> list[int]:
    counts = [0] * len(leases.sources)
    for _ in range(samples // 40):
        leases.raise_marks(leases.wanted_marks({A: 200}))
        for unit in leases.grant(A, 40):
            counts[next(n for n, source in enumerate(leases.sources) if unit.shard in source.shards)] += unit.samples
    return counts


def test_sources_are_dealt_by_weight_however_large_they_are() -> None:
    leases = LeaseBook((100, 5000, 60), 4, [Source((0, 2), 0.23), Source((1,), 0.77)])
    assert dealt(leases, 4000) == [920, 3080]
    assert [source.epoch for source in leases.sources] == [5, 0], "920 of 160 are five times all, and more"
    leases.mix([0.5, 0.5])
    assert dealt(leases, 400) == [200, 200], "what was dealt before is not made up for"
    leases.mix([1.0, 0.0])
    assert dealt(leases, 400) == [400, 0]
    leases.mix([2.0, 6.0])
    assert dealt(leases, 400) == [100, 300], "weights need not add up to one"


def test_a_source_whose_marks_are_used_up_waits_and_catches_up() -> None:
    leases = LeaseBook((1000, 1000), 4, [Source((0,), 0.5), Source((1,), 0.5)])
    leases.raise_marks([Mark(0, 0, 40)])
    assert {unit.shard for unit in leases.grant(A, 40)} == {0}
    leases.raise_marks([Mark(0, 0, 80), Mark(0, 1, 80)])
    assert [unit.shard for unit in leases.grant(A, 48)] == [1] * 10 + [0, 1], "and then by turns"


def test_a_source_without_samples_keeps_nobody_waiting() -> None:
    leases = LeaseBook((0, 100), 4, [Source((0,), 0.5), Source((1,), 0.5)])
    leases.raise_marks(leases.wanted_marks({A: 50}))
    assert {unit.shard for unit in leases.grant(A, 20)} == {1}
    leases.mix([1.0, 0.0])
    assert leases.grant(A, 20) == ()
    leases.mix([0.0, 0.0])
    assert (leases.grant(A, 20), leases.wanted_marks({A: 50})) == ((), ())


def test_each_accumulator_finishes_its_own_shard_then_the_next() -> None:
    leases = LeaseBook((12, 12, 12, 12), 4)
    leases.raise_marks(leases.wanted_marks({A: 12, B: 12}))
    assert leases.grant(A, 8) == (Unit(0, 0, 0, 4), Unit(0, 0, 4, 8))
    assert leases.grant(B, 4) == (Unit(0, 1, 0, 4),)
    leases.raise_marks(leases.wanted_marks({A: 12, B: 12}))
    assert leases.grant(A, 8) == (Unit(0, 0, 8, 12), Unit(0, 2, 0, 4))
    assert leases.grant(B, 4) == (Unit(0, 1, 4, 8),)


def test_the_next_shard_of_each_is_known_as_soon_as_it_has_one() -> None:
    """Each machine has its own next shard, which it can fetch while computing on the current one."""
    leases = LeaseBook((12,) * 6, 4)
    assert leases.coming(A, 2) == (), "nobody has asked for anything"
    leases.raise_marks(leases.wanted_marks({A: 4, B: 4}))
    leases.grant(A, 4), leases.grant(B, 4)
    assert (leases.coming(A, 2), leases.coming(B, 2), leases.coming(A, 2)) == ((0, 2), (1, 3), (0, 2))
    leases.raise_marks(leases.wanted_marks({A: 12, B: 12}))
    assert {unit.shard for unit in leases.grant(A, 8)} == {0}
    assert leases.coming(A, 2) == (2, 4)
    leases.raise_marks(leases.wanted_marks({A: 12, B: 12}))
    assert {unit.shard for unit in leases.grant(A, 12)} == {2}
    assert leases.coming(A, 2) == (4,), "where few are nobody's, they are left to whoever needs one now"
    assert leases.coming(C, 2) == ()


def test_coming_shards_are_the_next_of_each_source_dealt_from() -> None:
    leases = LeaseBook((12,) * 6, 4, [Source((0, 1), 0.5), Source((2, 3), 0.5), Source((4, 5), 0.0)])
    leases.raise_marks(leases.wanted_marks({A: 8}))
    leases.grant(A, 8)
    assert leases.coming(A, 1) == (0, 2, 1, 3)


def test_the_shard_that_is_needed_first_is_named_first() -> None:
    """The source with weight 0.75 uses up its shard before the one with weight 0.25 does."""
    leases = LeaseBook((12, 12, 20, 20), 4, [Source((0, 1), 0.25), Source((2, 3), 0.75)])
    leases.raise_marks(leases.wanted_marks({A: 8}))
    leases.grant(A, 8)
    assert leases.coming(A, 1) == (0, 2, 3, 1)


def test_the_next_but_one_is_known_while_enough_are_nobodys() -> None:
    """Two sources may need their next shards at the same time. A fast link can fetch both in advance."""
    leases = LeaseBook((12,) * 12, 4, [Source(tuple(range(6)), 0.25), Source(tuple(range(6, 12)), 0.75)])
    leases.raise_marks(leases.wanted_marks({A: 8, B: 8}))
    leases.grant(A, 8)
    assert leases.coming(A, 1) == (0, 6, 8, 9, 2, 3), "after 0, 0, 11, 27, 32 and 80 samples"
    leases.grant(B, 4)
    assert leases.coming(B, 1) == (1, 7, 10, 4), "what A was told of is its own, and too few are nobody's"


def test_so_many_are_named_as_a_message_holds() -> None:
    sources = [Source(tuple(range(5 * number, 5 * number + 5)), 1.0) for number in range(MOST_SOURCES)]
    leases = LeaseBook((12,) * 5 * MOST_SOURCES, 4, sources)
    leases.raise_marks(leases.wanted_marks({A: 4 * MOST_SOURCES}))
    leases.grant(A, 4 * MOST_SOURCES)
    coming = leases.coming(A, 1)
    assert len(coming) == MOST_COMING
    assert {shard % 5 for shard in coming} == {0, 1}, "and first those that are needed first"


def test_the_next_shard_of_whoever_is_gone_is_somebody_elses() -> None:
    leases = LeaseBook((12,) * 4, 4)
    leases.raise_marks(leases.wanted_marks({A: 4}))
    leases.grant(A, 4)
    assert leases.coming(A, 2) == (0, 1)
    leases.mark_used(A, leases.held[A])
    leases.raise_marks(leases.wanted_marks({B: 4}))
    leases.grant(B, 4)
    assert set(leases.coming(B, 2)) <= {0, 1}


def test_towards_the_end_of_an_epoch_they_share_what_is_left() -> None:
    leases = LeaseBook((40, 40), 4)
    leases.raise_marks(leases.wanted_marks({A: 8, B: 8, C: 8}))
    assert [leases.grant(name, 4)[0].shard for name in (A, B)] == [0, 1]
    assert leases.grant(C, 8) == (Unit(0, 0, 4, 8), Unit(0, 0, 8, 12)), "it goes on with what it has begun"
    for _ in range(10):
        leases.raise_marks(leases.wanted_marks({C: 24}))
        leases.grant(C, 12)
    assert leases.sources[0].epoch > 0, "nobody waits for a shard's first machine"


def test_used_up_marks_of_a_shard_are_made_up_for_by_others() -> None:
    leases = LeaseBook((40, 40), 4)
    leases.raise_marks(leases.wanted_marks({A: 4, B: 40}))
    assert [unit.shard for unit in leases.grant(A, 12)] == [0, 1, 1]
    leases.raise_marks([Mark(0, 0, 40)])
    assert [unit.shard for unit in leases.grant(A, 8)] == [0, 0], "its own shard is the first again"


def test_whoever_is_gone_leaves_its_shard_to_the_next() -> None:
    leases = LeaseBook((40, 40, 40), 4)
    leases.raise_marks(leases.wanted_marks({A: 8, B: 8}))
    for name in (A, B):
        leases.grant(name, 4)
    leases.take_back(A)
    leases.mark_used(B, leases.held[B])
    leases.raise_marks(leases.wanted_marks({B: 8, C: 8}))
    assert leases.grant(C, 8) == (Unit(0, 0, 0, 4), Unit(0, 0, 4, 8)), "what came back, and the rest of the shard"
    assert leases.grant(B, 4) == (Unit(0, 1, 4, 8),), "who holds nothing for a while keeps its own"


def test_after_a_restart_everybody_goes_on_with_its_shard() -> None:
    leases = restored((40, 40, 40), 4, [Mark(0, 1, 8), Mark(0, 2, 8)], [])
    assert leases.claim(A, [Unit(0, 2, 0, 4)])
    assert leases.claim(B, [Unit(0, 1, 4, 8)])
    leases.raise_marks(leases.wanted_marks({A: 8, B: 8, C: 8}))
    assert [leases.grant(name, 4)[0] for name in (A, B, C)] == [Unit(0, 2, 8, 12), Unit(0, 1, 8, 12), Unit(0, 0, 0, 4)]


def test_an_epoch_of_many_shards_is_fetched_about_once() -> None:
    paces = {AccumulatorId(letter * 32): 4 * pace for letter, pace in zip("abcd", (1, 2, 4, 8), strict=True)}
    leases, fetched = LeaseBook((400,) * 64, 4), set[tuple[AccumulatorId, int]]()
    while not leases.sources[0].epoch:
        leases.raise_marks(leases.wanted_marks({name: 4 * pace for name, pace in paces.items()}))
        for name, pace in paces.items():
            units = leases.grant(name, pace)
            assert sum(unit.samples for unit in units) == pace
            fetched |= {(name, unit.shard) for unit in units if not unit.epoch}
            leases.mark_used(name, units)
    assert len(fetched) <= 64 + 2 * len(paces)


def test_returned_units_go_out_first() -> None:
    leases = book()
    first = leases.grant(A, 8)
    leases.take_back(A)
    assert leases.grant(B, 8) == tuple(sorted(first))


def test_nothing_is_granted_above_the_marks() -> None:
    leases = LeaseBook(SIZES, 4)
    assert leases.grant(A, 8) == ()
    leases.raise_marks([Mark(0, 0, 4)])
    assert leases.grant(A, 8) == (Unit(0, 0, 0, 4),)


@pytest.mark.parametrize("sizes", [(10_000, 1000, 1000), (20_000, 200), (3,), (1, 1, 1), (5, 100_000)])
def test_reserving_and_granting_never_block_each_other(sizes: tuple[int, ...]) -> None:
    """However unequal the shards are, the book asks for higher marks whenever it has nothing to grant."""
    leases = LeaseBook(sizes, 4)
    for _ in range(500):
        leases.raise_marks(leases.wanted_marks({A: 201}))
        units = leases.grant(A, 10)
        assert units
        leases.mark_used(A, units)


def test_marks_are_not_asked_for_while_half_is_left() -> None:
    leases = LeaseBook((1000, 1000), 4)
    leases.raise_marks(leases.wanted_marks({A: 100}))
    assert leases.wanted_marks({A: 100}) == ()
    leases.grant(A, 44)
    assert leases.wanted_marks({A: 100}) == ()
    leases.grant(A, 20)
    assert leases.wanted_marks({A: 100}) != ()


def test_a_book_without_samples_grants_nothing() -> None:
    leases = LeaseBook((0, 0), 4)
    assert leases.wanted_marks({A: 10}) == ()
    assert leases.grant(A, 4) == ()
    assert restored((0,), 4, [], []).sources[0].epoch == 0


def test_after_a_restart_units_are_claimed_by_their_holder_alone() -> None:
    leases = restored(SIZES, 4, [Mark(0, 0, 12)], [Unit(0, 0, 4, 8)])
    assert leases.orphans == [Unit(0, 0, 0, 4), Unit(0, 0, 8, 12)]
    assert leases.claim(A, [Unit(0, 0, 8, 12)])
    assert not leases.claim(B, [Unit(0, 0, 0, 4), Unit(0, 0, 8, 12)]), "one is somebody else's"
    assert not leases.claim(B, [Unit(0, 0, 4, 8)]), "settled"
    assert leases.orphans == [Unit(0, 0, 0, 4)], "a refused claim changes nothing"
    assert leases.claim(B, [Unit(0, 0, 0, 4)])


@pytest.mark.parametrize("unit", [Unit(0, 0, 0, 12), Unit(0, 0, 4, 4), Unit(0, 0, 8, 4), Unit(0, 9, 0, 4)])
def test_what_never_was_a_unit_is_not_claimed(unit: Unit) -> None:
    assert not restored(SIZES, 4, [Mark(0, 0, 12)], []).claim(A, [unit])


@pytest.mark.parametrize(
    ("marks", "epoch"),
    [
        ([], 0),
        ([Mark(0, 0, 40)], 0),
        ([Mark(0, 0, 40), Mark(0, 1, 13), Mark(0, 2, 2)], 1),
        ([Mark(0, 0, 40), Mark(0, 1, 13), Mark(0, 2, 2), Mark(1, 0, 4)], 1),
        ([Mark(0, 0, 40), Mark(0, 1, 12), Mark(0, 2, 2), Mark(1, 0, 4)], 0),
    ],
)
def test_restart_resumes_in_the_first_unfinished_epoch(marks: list[Mark], epoch: int) -> None:
    assert restored(SIZES, 4, marks, []).sources[0].epoch == epoch


def test_a_unit_that_keeps_failing_is_left_out_and_counted() -> None:
    leases = book()
    (unit,) = leases.grant(A, 4)
    given_up = []
    for _ in range(GIVE_UP):
        assert leases.holds(A, [unit])
        given_up.append(leases.failed(A, [unit], "ann", is_alone=True))
        leases.grant(A, 4)
    assert given_up == [[], [], [unit]]
    assert not leases.holds(A, [unit])
    assert leases.lost_samples == unit.samples


def test_a_unit_is_left_out_only_if_it_fails_for_two_people() -> None:
    leases = book()
    (unit,) = leases.grant(A, 4)
    for _ in range(5 * GIVE_UP):
        assert leases.failed(A, [unit], "ann") == []
        assert unit in leases.grant(A, 4)
    assert leases.failed(A, [unit], "bob") == [unit]
    assert leases.lost_samples == unit.samples


def test_what_was_left_out_stays_so_after_a_restart() -> None:
    again = restored(SIZES, 4, [Mark(0, 0, 12)], [Unit(0, 0, 0, 4)], [Unit(0, 0, 4, 8)])
    assert again.orphans == [Unit(0, 0, 8, 12)]
    assert again.lost_samples == 4
