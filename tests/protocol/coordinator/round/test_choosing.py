"""Codecs and contributors that the plan chooses: by what links carry and what was delivered, and not to and fro."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.round.choosing import GAIN
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import capacities_of, codecs_of, linked
from tests.protocol.coordinator.stage import ELEMENTS, Stage, Trainer, peer_of, sealed, sent

QUICK, SLOW = 1e7, 2e4  # bytes a second: a vector of fp16 takes 0.03 s, or 13 s
RELAY = peer_of("relay")


def cut(stage: Stage, *trainers: Trainer) -> dict[str, str]:
    """The next batch is made; the codec that each was told, by name."""
    before = len(stage.said)
    stage.accumulate(*trainers)
    names = {trainer.peer: trainer.name for trainer in stage.trainers.values()}
    return {names[peer]: codec for peer, codec in codecs_of(stage.said[before:]).items()}


def finish(stage: Stage, *trainers: Trainer) -> None:
    """What follows the cut."""
    stage.offers(*trainers)
    stage.close()
    stage.reduce()
    stage.persist()


def set_link(stage: Stage, trainer: Trainer, bps: float) -> None:
    stage.state.capacities |= capacities_of([(trainer.peer, bps)])


def test_as_stated_nothing_is_chosen_however_slow_a_link_is() -> None:
    stage, _ = linked(QUICK, QUICK, QUICK, SLOW)
    assert set(cut(stage).values()) == {"fp16"}
    assert stage.state.chosen is None


def test_nothing_is_known_of_links_at_first_so_the_codec_is_the_stated_one() -> None:
    stage, trainers = linked(0, 0, 0, 0, relay_bps=0, codecs="plan", contributors="fast")
    assert cut(stage) == dict.fromkeys((trainer.name for trainer in trainers), "fp16")
    assert (stage.round.codec_down, stage.round.left_out) == ("fp16", {})


def test_a_slow_link_gets_a_smaller_codec_and_the_others_keep_theirs() -> None:
    """The way down is the same for all (rule 14)."""
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    assert cut(stage) == {"ann": "fp16", "bob": "fp16", "cem": "fp16", "dan": "int4"}
    assert stage.round.codec_down == "int4", "each averaged vector goes over the slow link as well"
    stage.offers(*trainers)
    plan = stage.round.plan
    assert plan is not None
    assert [slot.codec for slot in plan.slots] == ["fp16", "fp16", "fp16", "int4"]
    assert plan.codec_down == "int4"
    assert plan.duration_s == pytest.approx(encoded_size("int4", ELEMENTS) / SLOW, rel=0.01), "no longer than it takes"


def test_no_codec_is_more_exact_than_the_stated_one() -> None:
    stage, _ = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan", codec_up="int8", codec_down="int8")
    assert cut(stage) == {"ann": "int8", "bob": "int8", "cem": "int8", "dan": "int4"}
    assert stage.round.codec_down == "int4"


def test_credit_in_bytes_averaged_is_of_the_codec_of_each() -> None:
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    cut(stage)
    finish(stage, *trainers)
    record = stage.records[-1]
    assert record.codec == "int4"
    chunks, size = stage.state.grid.chunks, stage.state.grid.chunk_elements
    expected = chunks * (3 * encoded_size("fp16", size) + encoded_size("int4", size))
    assert averaged_bytes(record, "fp16") == {RELAY: expected}


def test_records_of_stated_codecs_say_nothing_new() -> None:
    """Older agents refuse fields that they do not know."""
    stage, _ = linked(QUICK, QUICK)
    record = stage.commit()
    assert b"codec" not in sealed(record).contributions


def test_a_cut_is_said_again_in_the_same_codec() -> None:
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    first = cut(stage)
    set_link(stage, trainers[3], QUICK)
    again = codecs_of(stage.wait(stage.round.repeat_at - stage.now + TICK_S))
    assert {stage.trainers[peer].name: codec for peer, codec in again.items()} == first


def test_a_codec_stays_where_another_would_gain_next_to_nothing() -> None:
    """13 s in fp16, 3.4 s in int4: what links are thought to carry moves by less than that each round."""
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    told = []
    for factor in (1.0, 0.95, 1.05, 0.9, 1.1):
        set_link(stage, trainers[3], SLOW * factor)
        set_link(stage, trainers[0], QUICK * factor)
        told.append(cut(stage))
        finish(stage, *trainers)
    assert all(codecs == told[0] for codecs in told)


def test_fewer_bits_have_to_save_a_named_part_of_the_step() -> None:
    """In int8 a slow link takes half as long: of what the batch takes to compute, that is a small part or a large."""
    for part, codec in ((0.5 * GAIN, "fp16"), (4 * GAIN, "int8")):
        stage, trainers = linked(QUICK, QUICK, QUICK, QUICK, codecs="plan", batch=48)
        compute_s = 48 / sum(stage.member(trainer).samples_per_s for trainer in trainers)
        set_link(stage, trainers[3], encoded_size("fp16", ELEMENTS) / (part * compute_s))
        assert cut(stage)["dan"] == codec, part


def test_more_bits_are_taken_back_where_they_cost_nothing() -> None:
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    assert cut(stage)["dan"] == "int4"
    finish(stage, *trainers)
    set_link(stage, trainers[3], 1e9)
    set_link(stage, trainers[0], 1e9)
    set_link(stage, trainers[1], 1e9)
    set_link(stage, trainers[2], 1e9)
    assert set(cut(stage).values()) == {"fp16"}
    assert stage.round.codec_down == "fp16"


def test_attempts_of_a_round_share_the_codec_of_its_averages() -> None:
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    other = stage.relay("other")
    stage.state.capacities |= capacities_of([(other, 1e9)])
    cut(stage)
    stage.offers(*trainers)
    for trainer in trainers:
        set_link(stage, trainer, 1e9)
    held = next(span for span in stage.spans() if span.reducer == other)
    stage.span_done(held)
    stage.say(RELAY, m.Leave(run=stage.state.run))
    assert stage.state.phase is Phase.REDUCE
    assert stage.round.plan is not None
    assert (stage.round.plan.attempt, stage.round.plan.codec_down) == (stage.round.attempt, "int4")
    assert len(sent(stage.said, m.Void)) == 0
