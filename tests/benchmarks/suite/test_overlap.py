"""Tests of which steps the overlap benchmark counts, and how far left-out trainers fall behind."""

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import checked
from tests.benchmarks import overlap
from tests.benchmarks.rig import swarm
from tests.benchmarks.rig.coordinator import Timed
from tests.emulation.setups import setup
from tests.protocol.identities import RUN

ONE, TWO, THREE = (PeerId(f"{number:032x}") for number in (1, 2, 3))
NAMES = {ONE: "trainer-1", TWO: "trainer-2", THREE: "trainer-3"}
PLACE = {"run": RUN, "step": 4, "fence": 1, "attempt": 1}


def cut(number: int) -> m.Cut:
    return m.Cut(**PLACE, round=number, codec="fp16", chunk_elements=100)  # type: ignore[arg-type]


def sit_out(number: int) -> m.SitOut:
    return m.SitOut(**PLACE, round=number, reason="slow")  # type: ignore[arg-type]


def test_the_slowest_four_are_those_without_whom_it_is_measured() -> None:
    for name in overlap.ALBERT:
        fewer = overlap.faster(setup(name))
        trainers = [peer for peer in fewer.peers if peer.role == "trainer"]
        assert len(trainers) == 12
        assert len(setup(name).peers) - len(fewer.peers) == 4
        assert min(peer.up_mbit for peer in trainers) == 40.0, "100 Mb/s, scaled"


def test_everybody_computes_its_share_in_a_part_of_the_floor() -> None:
    found = setup("albert")
    way = overlap.way(found, 10.0, "all")
    assert way.pace.sample_s * way.recipe.target_batch / 16 == 7.0
    assert (way.recipe.staleness, way.recipe.codecs, way.recipe.micro_batch) == (1, "plan", 1)
    checked(way.recipe)


def test_who_was_left_out_is_looked_at_ten_rounds_later() -> None:
    steps = {step: Timed(0.0) for step in range(20)}
    steps[13].behind, steps[15].behind = {ONE: 0, TWO: 2}, {TWO: 1, THREE: 0}
    left_out = {3: {ONE, TWO}, 5: {TWO, THREE}, 12: {THREE}}
    assert overlap.behind_later(steps, left_out, NAMES) == {"trainer-1": 0, "trainer-2": 2, "trainer-3": 0}


def test_a_round_is_timed_by_those_who_are_in_it() -> None:
    timed = Timed(10.0, codecs={ONE: "int4", TWO: "int4"})
    timed.ask(cut(7), [ONE, TWO])
    timed.ask(sit_out(7), [THREE])
    timed.held_at = {ONE: 12.0, THREE: 30.0}
    assert not timed.is_held, "as many as contribute, but others"
    timed.held_at[TWO] = 13.5
    assert timed.is_held
    assert timed.round_s == 3.5
    timed.ask(cut(8), [ONE, THREE])
    assert (timed.asked, timed.left_out) == ({ONE, THREE}, set()), "another round at this step"
    timed.ask(cut(8), [ONE])
    assert timed.asked == {ONE, THREE}, "the same, said again"


def test_the_plans_freedom_is_a_recipe_that_may_be() -> None:
    free, stated = (swarm.way_of(setup("four"), codec) for codec in ("plan", "int8"))
    assert (free.recipe.contributors, free.recipe.codecs, free.recipe.codec_up) == ("fast", "plan", "fp16")
    assert (stated.recipe.contributors, stated.recipe.codecs, stated.recipe.codec_up) == ("all", "stated", "int8")
    assert free.recipe.target_batch == stated.recipe.target_batch
    assert free.pace.sample_s * swarm.SAMPLES == swarm.UNIT_S
    assert free.pace.late_s == 0.0
    assert stated.pace.late_s >= 5 * swarm.UNIT_S, "so that all are in every round"
    assert checked(free.recipe)
    assert checked(stated.recipe)
