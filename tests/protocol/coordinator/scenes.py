"""Starting states of a run, shared by several test files."""

from collections.abc import Iterable, Mapping
from typing import Any

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import WAYS, Capacity, Direction
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.events import Mark
from peer_agent.protocol.coordinator.state import Phase
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Included, digest_of
from tests.protocol.coordinator.stage import ELEMENTS, RUN, TOKENS, Stage, Trainer, sealed, sent

CHUNKS = ELEMENTS // (16 * 1024)
NAMES = ("ann", "bob", "cem", "dan", "eva", "fay", "gus", "hal")


def pair() -> tuple[Stage, Trainer, Trainer]:
    stage = Stage(batch=24)
    stage.relay()
    ann, bob = stage.trainer("ann"), stage.trainer("bob")
    stage.commit()
    return stage, ann, bob


def four(*, same_person: bool, **facts: Any) -> tuple[Stage, list[Trainer], Trainer]:
    """Return three trainers that work honestly, and one whose behaviour is up to the test."""
    stage = Stage(batch=48, **facts)
    stage.relay()
    names = ["ann", "bob", "cem", "zoe"]
    *honest, other = [stage.trainer(name, "ann" if same_person else name) for name in names]
    return stage, honest, other


# --- a round


def reducing(
    *relays: Mapping[str, Any],
    people: int = 4,
    unit_s: float = 1.0,
    bps: Iterable[int] = (),
    values: Mapping[str, Any] | None = None,
    **last: float,
) -> tuple[Stage, list[Trainer], list[PeerId]]:
    """Return a round whose plan has just been announced. Each trainer has computed two units. `last` changes the last
    trainer's offer.

    `bps`: the measured rates of the relays' links, in bytes per second. `values`: further fields of the recipe.
    """
    stage = Stage(batch=8 * people, values=values)
    reducers = [stage.relay(f"relay{number}", **said) for number, said in enumerate(relays or ({},))]
    stage.state.links.capacities |= capacities_of(zip(reducers, bps, strict=False))
    trainers = [stage.trainer(name) for name in NAMES[:people]]
    if any("role" in said for said in relays):  # members reduce only if other members can reach them
        for peer in (*reducers, *(trainer.peer for trainer in trainers)):
            stage.say(peer, m.Reaches(run=RUN, listeners=tuple(reducers)))
    stage.accumulate(unit_s=unit_s)
    stage.offers(*trainers[:-1])
    stage.offer(trainers[-1], **last)
    assert stage.state.phase is Phase.REDUCE
    return stage, trainers, reducers


def capacities_of(links: Iterable[tuple[PeerId, float]]) -> dict[Direction, Capacity]:
    return {(peer, way): Capacity(bps, is_floor=False, measured_at=0) for peer, bps in links for way in WAYS}


def linked(*bps: float, relay_bps: float = 1e9, batch: int = 48, **values: Any) -> tuple[Stage, list[Trainer]]:
    """Return a run of equally fast trainers after one update. `bps`: the known rates of their links, in both
    directions.

    `values`: fields of the recipe. A whole vector takes 262,160 bytes in fp16, half of that in int8, a quarter in
    int4.
    """
    stage = Stage(batch=batch, values=values)
    relay = stage.relay()
    trainers = [stage.trainer(name) for name in NAMES[: len(bps)]]
    stage.commit()
    links = [(relay, relay_bps), *((trainer.peer, speed) for trainer, speed in zip(trainers, bps, strict=True))]
    stage.state.links.capacities = capacities_of((peer, speed) for peer, speed in links if speed)
    return stage, trainers


def codecs_of(commands: Iterable[e.Command]) -> dict[PeerId, str]:
    said = [c for c in commands if isinstance(c, e.Send) and isinstance(c.message, m.Cut)]
    return {peer: send.message.codec for send in said for peer in send.peers}  # type: ignore[attr-defined]


def progress(stage: Stage, reducer: PeerId, *chunks: int, behind: tuple[int, ...] = ()) -> list[e.Command]:
    received, dropped = tuple(enumerate(chunks)), len(stage.round.dropped)
    return stage.say(reducer, m.Progress(**stage.place(), received=received, dropped=dropped, behind=behind))


def chunks_arrive(stage: Stage, reducer: PeerId, seconds: float, *per_s: float) -> float:
    begun = stage.now
    while stage.now < begun + seconds and stage.state.phase is Phase.REDUCE:
        stage.wait(0.5)
        if stage.state.phase is Phase.REDUCE:
            progress(stage, reducer, *(min(CHUNKS, int(rate * (stage.now - begun))) for rate in per_s))
    return stage.now - begun


def partly(stage: Stage, slot: int) -> None:
    """Report the round's span as done, with this slot included only in its second half."""
    (span,) = stage.spans()
    others = tuple(number for number in range(len(stage.round.slots)) if number != slot)
    everybody = tuple(range(len(stage.round.slots)))
    stage.span_done(span, included=(Included(span.first, 4, others), Included(4, span.stop, everybody)))


def left_out(slot: int, people: int = 4) -> tuple[Stage, list[Trainer], int]:
    """Return a run whose last update included only half of a slot's chunks, and how many tokens that slot's trainer
    carries.
    """
    stage, trainers, _ = reducing(people=people)
    weight = trainers[slot].samples * TOKENS
    partly(stage, slot)
    stage.persist()
    return stage, trainers, weight


def offers_carried(stage: Stage, trainer: Trainer, carried: int) -> list[str]:
    tokens = trainer.samples * TOKENS
    weights = (m.Weight(0, 4, tokens + carried), m.Weight(4, 8, tokens))
    answer = stage.offer(trainer, weights=weights, loss_tokens=tokens)
    return [notice.code for notice in sent(answer, m.Notice)]  # type: ignore[attr-defined]


# --- another host


def restarted(stage: Stage, **facts: Any) -> Stage:
    """Return a new host of the same run, restored from the database."""
    head = stage.records[-1]
    marks = [Mark(*place, mark) for place, mark in stage.state.leases.reserved.items()]
    settled = [unit for record in stage.records for entry in record.contributions for unit in entry.units]
    given: dict[str, Any] = {
        "fence": stage.state.fence + 1,
        "index": head.index,
        "step": head.step,
        "digest": digest_of(sealed(head)),
        "marks": marks,
        "settled": settled,
        "last": [sealed(record) for record in stage.records[-16:]],
    }
    after = Stage(batch=stage.state.recipe.target_batch, **{**given, **facts})
    after.records = stage.records
    after.relay()
    return after


def come_back(stage: Stage, trainer: Trainer, **said: object) -> list[e.Command]:
    for name, value in said.items():
        setattr(trainer, name, value)
    stage.trainers[trainer.peer] = trainer
    return stage.hello(trainer)
