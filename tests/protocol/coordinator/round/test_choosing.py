"""The plan chooses codecs and contributors from link rates and deliveries, without flapping."""

import pytest

from peer_agent.protocol import messages as m
from peer_agent.protocol.averaged import averaged_bytes
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.coordinator.advance import TICK_S
from peer_agent.protocol.coordinator.round import planning
from peer_agent.protocol.coordinator.round.choosing import GAIN
from peer_agent.protocol.coordinator.state import Phase
from tests.protocol.coordinator.scenes import capacities_of, codecs_of, linked
from tests.protocol.coordinator.stage import ELEMENTS, Stage, Trainer, peer_of, sent

QUICK, SLOW = 1e7, 2e4  # bytes per second: a vector in fp16 takes 0.03 s or 13 s
RELAY = peer_of("relay")


@pytest.fixture(autouse=True)
def bytes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave overheads out of the planned time, to keep the tests' figures round."""
    monkeypatch.setattr(planning, "START_S", 0.0)
    monkeypatch.setattr(planning, "FRAMING", 1.0)


def cut(stage: Stage, *trainers: Trainer) -> dict[str, str]:
    """Complete the next batch. Return each trainer's codec at the cut, by trainer name."""
    before = len(stage.said)
    stage.accumulate(*trainers)
    names = {trainer.peer: trainer.name for trainer in stage.trainers.values()}
    return {names[peer]: codec for peer, codec in codecs_of(stage.said[before:]).items()}


def finish(stage: Stage, *trainers: Trainer) -> None:
    stage.offers(*trainers)
    stage.close()
    stage.reduce()
    stage.persist()


def set_link(stage: Stage, trainer: Trainer, bps: float) -> None:
    stage.state.links.capacities |= capacities_of([(trainer.peer, bps)])


def test_as_stated_nothing_is_chosen_however_slow_a_link_is() -> None:
    stage, _ = linked(QUICK, QUICK, QUICK, SLOW)
    assert set(cut(stage).values()) == {"fp16"}
    assert stage.state.chosen is None


def test_stated_codec_is_used_while_links_are_unknown() -> None:
    stage, trainers = linked(0, 0, 0, 0, relay_bps=0, codecs="plan", contributors="fast")
    assert cut(stage) == dict.fromkeys((trainer.name for trainer in trainers), "fp16")
    assert (stage.round.codec_down, stage.round.left_out) == ("fp16", {})


def test_slow_link_gets_a_smaller_codec_and_others_keep_theirs() -> None:
    """Averages use one codec for all receivers (rule 14)."""
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
    assert averaged_bytes(record) == {RELAY: expected}


def test_a_cut_is_said_again_in_the_same_codec() -> None:
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    first = cut(stage)
    set_link(stage, trainers[3], QUICK)
    again = codecs_of(stage.wait(stage.round.repeat_at - stage.now + TICK_S))
    assert {stage.trainers[peer].name: codec for peer, codec in again.items()} == first


def test_a_codec_stays_where_another_would_gain_next_to_nothing() -> None:
    """A vector takes 13 s in fp16 and 3.4 s in int4. Between rounds, rate estimates vary far less than that."""
    stage, trainers = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    told = []
    for factor in (1.0, 0.95, 1.05, 0.9, 1.1):
        set_link(stage, trainers[3], SLOW * factor)
        set_link(stage, trainers[0], QUICK * factor)
        told.append(cut(stage))
        finish(stage, *trainers)
    assert all(codecs == told[0] for codecs in told)


def test_fewer_bits_have_to_save_a_named_part_of_the_step() -> None:
    """With int8, a slow link takes half the time. In each case, the saving is a small or a large part of the batch's
    computing time.
    """
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
    stage.state.links.capacities |= capacities_of([(other, 1e9)])
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


# --- who is left out


def fast(*bps: float, **values: object) -> tuple[Stage, list[Trainer]]:
    """Return trainers whose batch takes 3 s to compute. On a quick link, a round takes 0.03 s."""
    return linked(*(bps or (QUICK, QUICK, QUICK, SLOW)), contributors="fast", **values)  # type: ignore[arg-type]


def test_who_would_hold_up_everybody_is_left_out_and_told_why() -> None:
    stage, (*quick, slow) = fast()
    held = cut(stage)
    assert held == {"ann": "fp16", "bob": "fp16", "cem": "fp16"}
    (told,) = sent(stage.said, m.SitOut)
    assert told == sent(stage.said, m.SitOut, slow.peer)[0]
    assert isinstance(told, m.SitOut)
    assert (told.step, told.attempt, told.round) == (1, stage.round.attempt, stage.round.number)
    assert told.reason == "its link needs 13.1 s for a round that the others make in 0.0 s"
    assert slow.peer not in stage.round.persons
    assert stage.round.waiting == {trainer.peer for trainer in quick}, "nobody waits for its offer"
    assert sum(trainer.samples for trainer in quick) >= 48, "the batch is what the contributors bring"


def test_with_everybody_nobody_is_left_out() -> None:
    stage, _ = linked(QUICK, QUICK, QUICK, SLOW, codecs="plan")
    assert set(cut(stage)) == {"ann", "bob", "cem", "dan"}
    assert sent(stage.said, m.SitOut) == []


def test_a_smaller_codec_is_taken_before_anybody_is_left_out() -> None:
    bps = encoded_size("int8", ELEMENTS) / 0.6
    stage, _ = fast(QUICK, QUICK, QUICK, bps, codecs="plan")
    assert cut(stage)["dan"] == "int8"
    stage, _ = fast(QUICK, QUICK, QUICK, bps / 20, codecs="plan")
    assert "dan" not in cut(stage)


def test_the_batch_counts_what_contributors_bring() -> None:
    stage, (*quick, slow) = fast()
    stage.wait(2.0)
    assert stage.state.chosen is not None
    assert set(stage.state.chosen.left_out) == {slow.peer}
    while slow.undone and slow.samples < slow.quota:
        stage.compute(slow)
    for trainer in quick:
        while trainer.undone and trainer.samples + 4 <= 12:
            stage.compute(trainer)
    assert stage.state.awake_samples >= 48 > sum(trainer.samples for trainer in quick)
    assert stage.state.round is None
    for trainer in quick:
        stage.compute(trainer)
    assert stage.round.waiting == {trainer.peer for trainer in quick}


def test_shares_of_the_batch_are_dealt_to_those_who_contribute() -> None:
    stage, (*quick, slow) = fast()
    stage.wait(2.0)
    assert sum(stage.member(trainer).share for trainer in quick) >= 48
    assert stage.member(slow).share == stage.member(quick[0]).share, "as much for its time, for the round after"


def test_it_goes_first_in_the_next_round_with_work_a_step_old() -> None:
    stage, (*quick, slow) = fast()
    cut(stage)
    carried = dict(slow.done)
    assert carried
    finish(stage, *quick)
    assert stage.records[-1].exact
    assert stage.member(slow).reliability.skipped_updates == 1
    assert "dan" in cut(stage)
    assert stage.round.left_out == {}
    assert set(carried) < set(slow.done)
    stage.offers(*quick, slow)
    assert slow.peer in {slot.peer for slot in stage.round.slots}
    stage.reduce()
    record = stage.persist()
    own = next(entry for entry in record.contributions if entry.peer == slow.peer)
    assert set(carried) <= set(own.units)
    assert not record.exact, "units of the step before are in it"
    assert stage.member(slow).reliability.skipped_updates == 0
    assert "dan" not in cut(stage), "and then it is left out again"


def test_a_void_round_is_no_round_that_it_was_left_out_of() -> None:
    stage, (*_, slow) = fast()
    cut(stage)
    stage.close()  # no trainer offers
    assert stage.state.round is None or stage.round.number > 2
    assert stage.member(slow).reliability.skipped_updates == 0


def test_a_round_does_not_wait_for_who_is_left_out() -> None:
    stage, (*quick, _) = fast()
    cut(stage)
    stage.offers(*quick)
    assert stage.round.plan is not None
    assert stage.round.plan.duration_s == pytest.approx(encoded_size("fp16", ELEMENTS) / QUICK, rel=0.01)


def test_where_only_the_slow_are_left_they_make_the_batch() -> None:
    stage, (*quick, slow) = fast()
    stage.wait(2.0)
    for trainer in quick:
        stage.say(trainer.peer, m.Leave(run=stage.state.run))
        del stage.trainers[trainer.peer]
    assert set(cut(stage)) == {"dan"}
    assert slow.samples >= 48


def test_nobody_is_left_out_for_a_reducer_that_is_slow() -> None:
    """Fewer gradients would mean fewer bytes for the slow reducer, but that is no reason to leave a trainer out."""
    stage, _ = fast(QUICK, QUICK, QUICK, 0.9 * QUICK, relay_bps=5e4)
    assert len(cut(stage)) == 4
    assert sent(stage.said, m.SitOut) == []


def test_nobody_is_left_out_of_whose_link_nothing_is_known() -> None:
    """A trainer whose link is unmeasured counts as the slowest. No other trainer is left out until that link is
    measured.
    """
    stage, trainers = fast(QUICK, QUICK, SLOW, 0)
    assert len(cut(stage)) == 4
    finish(stage, *trainers)
    set_link(stage, trainers[3], QUICK)
    assert set(cut(stage)) == {"ann", "bob", "dan"}


def test_a_keeper_of_the_log_is_not_left_out() -> None:
    """Without a relay, a commit needs this trainer to confirm that it has the averages."""
    stage, trainers = fast()
    stage.member(trainers[3]).stands_in = True
    assert "dan" in cut(stage)


def test_who_can_never_keep_up_is_told_so_once_with_what_to_do() -> None:
    stage, (*quick, slow) = fast()
    for _ in range(3):
        cut(stage)
        finish(stage, *quick, *([] if stage.round.left_out else [slow]))
    notices = [notice for notice in sent(stage.said, m.Notice, slow.peer) if isinstance(notice, m.Notice)]
    assert [notice.code for notice in notices] == ["E231"]
    assert "--auxiliary" in notices[0].text
    assert not any(sent(stage.said, m.Notice, trainer.peer) for trainer in quick)


def test_who_was_left_out_may_hold_two_rounds_of_work() -> None:
    stage, (*quick, slow) = fast()
    cut(stage)
    before = slow.quota
    finish(stage, *quick)
    assert slow.quota == 2 * before
