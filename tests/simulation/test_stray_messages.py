"""Messages that do not belong: from another attempt, step or fence, second answers, and unknown slots."""

from typing import Any

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.simulation.site import Host
from tests.simulation.checked_world import checked_world, relays, run_to, state

IN_A_ROUND = [Phase.OFFER, Phase.REDUCE, Phase.COMMIT]
ANY_TIME = [Phase.ACCUMULATE, *IN_A_ROUND]


def test_message_of_another_attempt_step_or_fence_does_nothing() -> None:
    world, _ = checked_world(trainers=3, relays=2, steps=14)
    world.run_steps(2)
    world.restart_host()
    world.run_steps(2)
    for phase in ANY_TIME:
        run_to(world, phase)
        host = world.host
        assert host is not None
        for step, fence, attempt in [(0, 0, 1), (-1, 0, 0), (0, -1, 0), (0, 1, 0), (1, 0, 0), (0, 0, -1)]:
            now = state(world)
            place: dict[str, Any] = {
                "run": now.run,
                "step": now.step + step,
                "fence": now.fence + fence,
                "attempt": max(0, now.attempt + attempt),
            }
            _say_all(host, place)
        assert world.run_steps(1, 60)
    assert "dropped" not in world.tally.notes
    assert "void" not in world.tally.notes


def _say_all(host: Host, place: dict[str, Any]) -> None:
    now = host.state
    if place["attempt"] == now.attempt and place["step"] == now.step and place["fence"] == now.fence:
        return
    trainer, relay = now.trainers()[0], next(iter(now.listening.values()))
    weights = (m.Weight(0, now.grid.chunks, 1),)
    offered: dict[str, Any] = {
        "units": (),
        "weights": weights,
        "loss_tokens": 1,
        "loss_sum": 1.0,
        "norm": 1.0,
        "root": bytes(32),
    }
    messages: list[m.TO_SITE] = [
        m.Offer(**place, accumulator=trainer.accumulator, **offered),
        m.SpanDone(**place, span=0, root=bytes(32), sum_squares=0.0, included=()),
        m.Progress(**place, received=((0, 1), (99, 1))),
        m.SlotRefused(**place, slot=0, chunk=0, code="E211"),
        m.Have(**place, span=0, root=bytes(32), sum_squares=0.0),
    ]
    for message in messages:
        before = repr((now.round, now.phase, now.leases, now.departed, now.step, now.index))
        peer = trainer.peer if isinstance(message, m.Offer) else relay.peer
        host.handle(e.Received(peer, message))
        after = repr((now.round, now.phase, now.leases, now.departed, now.step, now.index))
        assert before == after, message


def test_relay_naming_slots_that_do_not_exist_is_not_believed() -> None:
    world, _ = checked_world(trainers=2, steps=8)
    run_to(world, Phase.REDUCE)
    host, now = world.host, state(world)
    assert host is not None
    assert now.round is not None
    place: dict[str, Any] = {"run": now.run, "step": now.step, "fence": now.fence, "attempt": now.round.attempt}
    strange = m.Progress(**place, received=((7, 0), (65_535, 3)))
    host.handle(e.Received(relays(world)[0].peer, strange))
    host.handle(e.Received(relays(world)[0].peer, m.SlotRefused(**place, slot=9, chunk=0, code="E211")))
    world.wait(10)
    assert world.run_steps(2)
