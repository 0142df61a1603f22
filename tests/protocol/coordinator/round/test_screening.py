"""How far one person's claims can move an update: by norms, by weights, and by the losses that they state."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.round.screening import (
    GROSS,
    NEWCOMER,
    SETTLED,
    STRANGER,
    scales_of,
    weights_of,
)
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.log.records import Included, Record
from tests.protocol.coordinator.scenes import NAMES, reducing, restarted
from tests.protocol.coordinator.stage import TOKENS, Stage, Trainer, notes

NOBODY = frozenset[str]()


def people(count: int) -> list[str]:
    return [f"person {number}" for number in range(count)]


def weight(tokens: int) -> tuple[m.Weight, ...]:
    return (m.Weight(0, 8, tokens),)


# --- norms


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=50), st.data())
def test_honest_norms_are_left_alone(norms: list[float], data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(1, 5000), min_size=len(norms), max_size=len(norms)))
    assert scales_of(people(len(norms)), norms, tokens) == [1.0] * len(norms)


def test_small_batches_may_be_noisier_by_the_root_of_their_size() -> None:
    norms, tokens = [1.0, 1.0, 1.0, 39.0], [1600, 1600, 1600, 100]
    assert scales_of(people(4), norms, tokens) == [1.0] * 4
    assert scales_of(people(4), [1.0, 1.0, 1.0, 41.0], tokens)[3] == pytest.approx(40 / 41)


def test_a_gross_error_is_brought_to_the_bound() -> None:
    scales = scales_of(people(4), [1.0, 2.0, 3.0, 1e6], [100] * 4)
    assert scales[:3] == [1.0] * 3
    assert scales[3] * 1e6 == pytest.approx(GROSS * 2.5)


def test_strangers_norm_is_brought_to_twice_the_typical_one() -> None:
    norms, trusted = [1.0, 1.0, 1.0, 9.0, 9.0], frozenset({"person 3"})
    assert scales_of(people(5), norms, [100] * 5, trusted) == [1.0, 1.0, 1.0, 1.0, STRANGER / 9]


def test_large_batches_get_no_tighter_bound() -> None:
    assert scales_of(people(3), [1.0, 1.0, 9.9], [100, 100, 10_000]) == [1.0] * 3


@pytest.mark.parametrize("trusted", [None, NOBODY])
@pytest.mark.parametrize("norms", [[7.0], [0.0], [0.0, 0.0], [1e308, 1.0]])
def test_one_or_two_offers_are_never_clipped(norms: list[float], trusted: frozenset[str] | None) -> None:
    assert scales_of(people(len(norms)), norms, [10] * len(norms), trusted) == [1.0] * len(norms)


@given(st.lists(st.tuples(st.just(0.0) | st.floats(1e-9, 1e9), st.integers(1, 10**6)), min_size=1, max_size=30))
def test_scales_are_between_nothing_and_one(offers: list[tuple[float, int]]) -> None:
    norms, tokens = [norm for norm, _ in offers], [tokens for _, tokens in offers]
    scales = scales_of(people(len(offers)), norms, tokens)
    assert all(0.0 <= scale <= 1.0 for scale in scales)
    same = sorted((norm, scale) for (norm, tokens), scale in zip(offers, scales, strict=True) if tokens == offers[0][1])
    assert all(a[0] * a[1] <= b[0] * b[1] * (1 + 1e-12) for a, b in pairwise(same)), "clipping keeps the order"


def test_one_persons_machines_do_not_clip_everybody_else() -> None:
    """A regression: four machines of one person offered a norm of 1e-30, and all other gradients were scaled to it."""
    stage = Stage(batch=56)
    stage.relay()
    honest = [stage.trainer(name) for name in ("ann", "bob", "cem")]
    eve = [stage.trainer(f"eve{number}", "eve") for number in range(4)]
    stage.accumulate()
    for trainer in (*honest, *eve):
        stage.offer(trainer, norm=1e-30 if trainer in eve else 1.0)
    scales = {slot.peer: slot.scale for slot in stage.round.slots}
    assert [scales[trainer.peer] for trainer in honest] == [1.0] * 3


def two_people(*, steps: int, norms: tuple[float, float]) -> Stage:
    """Return a round of two people after `steps` updates whose norms were all 1."""
    stage = Stage(batch=32, trusted=NOBODY)
    stage.relay()
    trainers = [stage.trainer(name) for name in ("ann", "eve")]
    for step in range(steps + 1):
        stage.accumulate()
        for trainer, norm in zip(trainers, norms if step == steps else (1.0, 1.0), strict=True):
            stage.offer(trainer, norm=norm)
        if step < steps:
            committed(stage)
    return stage


@pytest.mark.parametrize(("steps", "scales"), [(0, [1.0, 1.0]), (3, [1.0, STRANGER / 1e6])])
def test_between_two_people_earlier_updates_decide_whose_norm_is_typical(steps: int, scales: list[float]) -> None:
    stage = two_people(steps=steps, norms=(1.0, 1e6))
    assert [slot.scale for slot in stage.round.slots] == (scales if steps else [1.0, pytest.approx(1.0)])


def test_the_typical_norm_of_earlier_updates_at_most_doubles_with_each() -> None:
    stage = two_people(steps=1, norms=(8.0, 8.0))
    assert [slot.scale for slot in stage.round.slots] == [STRANGER / 8] * 2
    committed(stage)
    assert list(stage.state.norms) == [1.0, 2.0]
    assert list(restarted(stage).state.norms) == [1.0, 2.0]


# --- weights


def test_newcomers_weigh_a_quarter_until_ten_updates_contain_their_work() -> None:
    persons, offered = ["ann", "bob", "eve", "eve"], [weight(100), weight(120), weight(60), weight(40)]
    *others, first, second = weights_of(persons, offered, NOBODY, {"eve"})
    assert others == offered[:2]
    assert [first, second] == [weight(int(60 * NEWCOMER)), weight(int(40 * NEWCOMER))]
    stage = Stage(batch=24, trusted=frozenset({"ann"}))
    stage.relay()
    for name in ("ann", "bob"):
        stage.trainer(name)
    parts = [[slot.weights[0].tokens / TOKENS for slot in committed_slots(stage)] for _ in range(SETTLED + 1)]
    offers = [trainer.samples for trainer in stage.trainers.values()]
    assert all(bob == pytest.approx(ann * NEWCOMER, rel=0.5) for ann, bob in parts[:SETTLED])
    assert parts[SETTLED][0] == pytest.approx(parts[SETTLED][1], rel=0.5), offers
    assert stage.records[SETTLED].exact
    assert not stage.records[0].exact
    assert restarted(stage, contributed={"bob": SETTLED}).state.contributed["bob"] == SETTLED


def test_machine_in_doubt_weighs_a_quarter() -> None:
    stage = Stage(batch=24, trusted=frozenset({"ann"}), contributed={"bob": SETTLED})
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    weights = [slot.weights[0].tokens for slot in committed_slots(stage)]
    assert weights[0] == weights[1]
    stage.member(bob).reliability.in_doubt = True
    parts = {slot.peer: slot.weights[0].tokens for slot in committed_slots(stage)}
    assert parts[bob.peer] <= 0.5 * parts[ann.peer]


def committed_slots(stage: Stage) -> tuple[m.Slot, ...]:
    stage.accumulate()
    for trainer in stage.trainers.values():
        stage.offer(trainer)
    slots = stage.round.slots
    committed(stage)
    return slots


def test_if_all_are_newcomers_all_count_in_full() -> None:
    stage = Stage(batch=24, trusted=NOBODY)
    stage.relay()
    for name in ("ann", "bob"):
        stage.trainer(name)
    committed_slots(stage)
    assert stage.records[0].exact


def test_persons_machines_together_weigh_at_most_twice_typical() -> None:
    persons = ["ann", "bob", "cem", "eve", "eve"]
    offered = [weight(100), weight(120), weight(90), weight(500), (m.Weight(0, 3, 300), m.Weight(3, 8, 0))]
    *honest, first, second = weights_of(persons, offered, NOBODY)
    assert honest == offered[:3]
    assert first == weight(500 * 220 // 800)
    assert second == (m.Weight(0, 3, 300 * 220 // 800), m.Weight(3, 8, 0))
    assert weights_of(persons, offered) == offered
    assert weights_of(persons, offered, frozenset({"eve"})) == offered


@given(st.lists(st.tuples(st.sampled_from(people(5)), st.integers(1, 10**9)), min_size=1, max_size=30))
def test_no_stranger_outweighs_the_typical_person_by_far(offers: list[tuple[str, int]]) -> None:
    persons, offered = [person for person, _ in offers], [weight(tokens) for _, tokens in offers]
    limited = weights_of(persons, offered, NOBODY)
    before = sorted(sum(tokens for each, tokens in offers if each == person) for person in set(persons))
    most = before[-1] if len(before) < 3 else 2 * before[len(before) // 2]
    for person in set(persons):
        mine = [after[0].tokens for each, after in zip(persons, limited, strict=True) if each == person]
        assert sum(mine) <= most + len(mine)
        assert min(mine) >= 1, "a slot without weight would send nothing"


def uneven(fast: int, *, people: int = 4, trusted: frozenset[str] | None = NOBODY) -> tuple[Stage, list[Trainer]]:
    """Return a round whose last person has computed `fast` times as much as each of the others."""
    stage = Stage(batch=16 * (people - 1 + fast), trusted=trusted)
    stage.relay()
    trainers = [stage.trainer(name) for name in NAMES[:people]]
    for _ in range(4):
        while stage.state.phase is Phase.ACCUMULATE:
            stage.wait(1.0)
            for trainer in trainers:
                if stage.state.phase is Phase.ACCUMULATE:
                    stage.compute(trainer, fast if trainer is trainers[-1] else 1)
        if stage.state.step == 3:
            break
        stage.offers(*trainers)
        stage.reduce()
        stage.persist()
    stage.offers(*trainers)
    assert stage.state.phase is Phase.REDUCE
    return stage, trainers


def part_of_last(stage: Stage) -> float:
    tokens = [slot.weights[0].tokens for slot in stage.round.slots]
    return tokens[3] / sum(tokens)


def committed(stage: Stage) -> Record:
    stage.reduce()
    return stage.persist()


def test_large_claims_weigh_no_more_than_two_people() -> None:
    stage, _ = uneven(4)
    assert 0.35 < part_of_last(stage) < 0.42
    assert not committed(stage).exact
    assert part_of_last(uneven(4, trusted=frozenset({"dan"}))[0]) > 0.5
    assert part_of_last(uneven(4, trusted=None)[0]) > 0.5


def test_what_weighs_less_is_credited_in_full() -> None:
    stage, trainers = uneven(4)
    samples = [trainer.samples for trainer in trainers]
    record = committed(stage)
    assert [part.samples for part in record.contributions] == samples
    assert [part.tokens for part in record.contributions] == [each * TOKENS for each in samples]
    assert [part.clipped for part in record.contributions] == [False, False, False, True]


def test_all_that_was_offered_can_be_carried() -> None:
    """Its trainer keeps what is left out. A limit for the average is no limit for the next offer."""
    stage, trainers = uneven(4, people=7)
    samples, every = trainers[-1].samples, tuple(range(7))
    (span,) = stage.spans()
    parts = (Included(span.first, 4, every[:-1]), Included(4, span.stop, every))
    stage.span_done(span, included=parts)
    stage.persist()
    assert stage.member(trainers[-1]).carried == samples * TOKENS


# --- losses


@pytest.mark.parametrize("said", [0.2, 1e12])
def test_impossible_loss_is_left_out_and_people_are_told(said: float) -> None:
    stage, *_ = reducing(loss_sum=said * 8 * TOKENS)
    assert notes(stage.said).count("refused") == 1
    assert committed(stage).loss == 2.5


def test_a_loss_twice_the_typical_one_counts() -> None:
    stage, *_ = reducing(loss_sum=4.5 * 8 * TOKENS)
    assert "refused" not in notes(stage.said)
    assert committed(stage).loss == (3 * 2.5 + 4.5) / 4


def test_machines_of_one_person_state_one_loss() -> None:
    stage = Stage(batch=56)
    stage.relay()
    honest = [stage.trainer(name) for name in ("ann", "bob", "cem")]
    eve = [stage.trainer(f"eve{number}", "eve") for number in range(4)]
    stage.accumulate()
    for trainer in (*honest, *eve):
        tokens = trainer.samples * TOKENS
        stage.offer(trainer, loss_sum=(0.2 if trainer in eve else 6.0) * tokens)
    assert committed(stage).loss == pytest.approx(6.0)


def test_between_two_people_the_last_update_decides() -> None:
    stage, trainers, _ = reducing(people=2)
    committed(stage)
    stage.accumulate()
    stage.offer(trainers[0])
    stage.offer(trainers[1], loss_sum=0.2 * trainers[1].samples * TOKENS)
    assert committed(stage).loss == 2.5


def test_a_person_alone_is_believed() -> None:
    stage, trainers, _ = reducing(people=1)
    committed(stage)
    stage.accumulate()
    stage.offer(trainers[0], loss_sum=0.2 * trainers[0].samples * TOKENS)
    assert committed(stage).loss == pytest.approx(0.2)
