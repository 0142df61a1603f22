"""A trainer's core without a machine: the test finishes its jobs and advances its clock."""

from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol import sealed
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import GENESIS, ChunkRange, Contribution, Record, Scalars, SpanEntry, Unit, whole
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import advance
from peer_agent.protocol.trainer.state import Phase, new_trainer
from peer_agent.recipes.causal_lm import CausalLM, Model
from tests.protocol.identities import RUN, SITE_PUBLIC

ME, RELAY, OTHER = PeerId("0a" * 16), PeerId("0b" * 16), PeerId("0c" * 16)
RECIPE = CausalLM(model=Model(context=9))
TOKENS = RECIPE.loss_units_in(1)[1]
ELEMENTS = 8 * 16 * 1024
CHUNKS = grid_of(ELEMENTS).chunks
SNAPSHOT = m.Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)
SCALARS = Scalars(learning_rate=0.1, clip=1.0, inverse_bias_1=1.0, inverse_bias_2=1.0, inverse_tokens=1.0)
Job = TypeVar("Job", bound=e.Action)
Said = TypeVar("Said", bound=m.Message)


def unit(number: int) -> Unit:
    """Return a unit of four samples."""
    return Unit(0, 0, 4 * number, 4 * number + 4)


class Stage:
    """One trainer's core. `actions`: those after the last event. `said`: the messages since the last call of `hush`."""

    def __init__(self, staleness: Literal[0, 1] = 0) -> None:
        self.now, self.seeds = 100.0, 1
        self.recipe = encode_recipe(replace(RECIPE, staleness=staleness))
        # typed Any, because its attributes change with each event
        self.core: Any = new_trainer(RUN, ME, self.now, self.seeds)
        self.actions: list[e.Action] = []
        self.said: list[m.Message] = []
        self.asked: list[e.Action] = []

    # --- what happens

    def handle(self, event: e.Event) -> list[e.Action]:
        self.seeds += 1
        self.actions = advance(self.core, event, self.now, self.seeds)
        self.said += [action.message for action in self.actions if isinstance(action, e.Say)]
        self.asked += self.actions
        return self.actions

    def hears(self, *messages: m.TO_PEER) -> None:
        for message in messages:
            self.handle(e.Heard(message))

    def waits(self, seconds: float) -> list[m.Message]:
        """Let time pass and then tick. Return the messages sent at that tick."""
        self.now += seconds
        before = len(self.said)
        self.handle(e.Ticked())
        return self.said[before:]

    def hush(self) -> None:
        self.said.clear()

    # --- what it requested

    def last(self, kind: type[Job]) -> Job:
        return next(action for action in reversed(self.asked) if isinstance(action, kind))

    def did(self, kind: type[e.Action]) -> bool:
        return any(isinstance(action, kind) for action in self.actions)

    def heard(self, kind: type[Said]) -> list[Said]:
        return [message for message in self.said if isinstance(message, kind)]

    # --- stories

    def join(self, *, index: int = 0) -> None:
        """Join a run whose log holds `index` entries. The coordinator has already reconciled the leases."""
        self.hears(m.Rehello(run=RUN, fence=1), self.greeting(reconciled=False))
        self.handle(e.Loaded(self.last(e.Load).job, "a" * 16))
        self.hears(self.greeting())
        for entry in range(1, index + 1):
            self.commits(entry)
        assert self.core.phase is Phase.ACCUMULATE
        self.hush()

    def greeting(self, **changes: Any) -> m.Greeting:
        return greeting(**({"recipe": self.recipe} | changes))

    def lease(self, *numbers: int, quota: int = 100, fence: int = 1) -> None:
        self.hears(m.Lease(run=RUN, fence=fence, units=tuple(unit(number) for number in numbers), quota=quota))

    def computes(self, count: int = 1, tokens: int = 4 * TOKENS, *, base: int | None = None) -> None:
        """Finish units computed with the parameters of step `base`. None means the current step."""
        for _ in range(count):
            step = self.core.step if base is None else base
            job = self.last(e.Compute)
            self.handle(e.Computed(job.job, 2.5, (tokens,) * len(job.units), step))

    def offers(self, **changes: Any) -> m.Offer:
        self.hears(cut(**({"step": self.core.step} | changes)))
        self.handle(e.Frozen(self.last(e.Freeze).job, b"r" * 32, 1.0))
        return self.heard(m.Offer)[-1]

    def plans(self, **changes: Any) -> None:
        self.handle(e.PlanHeard(sealed.own_part(plan(**({"step": self.core.step} | changes)), ME)))

    def hears_commit(self, index: int, **changes: Any) -> None:
        self.handle(e.CommitHeard(commit(index, **changes)))

    def commits(self, index: int, **changes: Any) -> None:
        self.hears_commit(index, **changes)
        self.applies()

    def applies(self) -> None:
        self.handle(e.Applied(self.last(e.Apply).job, "b" * 16))

    def contribution(self, *ranges: tuple[int, int]) -> dict[str, Any]:
        """Return the trainer's offer as a contribution, averaged in the given chunks."""
        assert self.core.round is not None
        assert self.core.round.offer is not None
        units = tuple(done.unit for done in self.core.round.offer.units)
        return {"accumulator": self.core.accumulator, "units": units, "ranges": ranges or ((0, CHUNKS),)}


def ready(*numbers: int, index: int = 0, staleness: Literal[0, 1] = 0) -> Stage:
    stage = Stage(staleness)
    stage.join(index=index)
    if numbers:
        stage.lease(*numbers)
        stage.computes(len(numbers))
        stage.hush()
    return stage


# --- messages


def greeting(**changes: Any) -> m.Greeting:
    usual: dict[str, Any] = {
        "run": RUN,
        "slug": "a-run",
        "title": "A run",
        "fence": 1,
        "recipe": encode_recipe(RECIPE),
        "elements": ELEMENTS,
        "shards": (),
        "snapshot": SNAPSHOT,
        "index": 0,
        "step": 0,
        "digest": GENESIS,
        "listeners": (),
        "site_key": SITE_PUBLIC,
        "reconciled": True,
    }
    return m.Greeting(**(usual | changes))


def cut(**changes: Any) -> m.Cut:
    usual: dict[str, Any] = {
        "run": RUN,
        "step": 0,
        "fence": 1,
        "attempt": 1,
        "round": 1,
        "codec": "fp32",
        "chunk_elements": 16 * 1024,
    }
    return m.Cut(**(usual | changes))


def void(**changes: Any) -> m.Void:
    usual: dict[str, Any] = {"run": RUN, "step": 0, "fence": 1, "attempt": 1, "round": 1, "reason": "a test"}
    return m.Void(**(usual | changes))


def opening(**changes: Any) -> m.Open:
    usual: dict[str, Any] = {"run": RUN, "step": 0, "fence": 1, "attempt": 1, "slot": 1}
    return m.Open(**(usual | changes))


def plan(*, peer: PeerId = ME, root: bytes = b"r" * 32, **changes: Any) -> m.Plan:
    """Return a plan with another peer in slot 0 and `peer` in slot 1."""
    weights = (m.Weight(0, CHUNKS, 1),)
    slots = [
        m.Slot(peer=OTHER, weights=weights, root=b"o" * 32, norm=1.0, codec="fp32"),
        m.Slot(peer=peer, weights=weights, root=root, norm=1.0, codec="fp32"),
    ]
    usual: dict[str, Any] = {
        "run": RUN,
        "step": 0,
        "fence": 1,
        "attempt": 1,
        "round": 1,
        "elements": ELEMENTS,
        "chunk_elements": 16 * 1024,
        "slots": tuple(slots),
        "codec_down": "fp32",
        "duration_s": 0.0,
        "spans": (m.PlannedSpan(span=0, first=0, stop=CHUNKS, reducer=RELAY, attempt=1),),
    }
    return sealed.plan_of(**(usual | changes))


def record(index: int, own: dict[str, Any] | None = None, **changes: Any) -> Record:
    """Return a record. `own`, if given, is this trainer's contribution, in slot 1."""
    span = SpanEntry(
        span=0,
        first=0,
        stop=CHUNKS,
        attempt=1,
        reducer=RELAY,
        root="00" * 32,
        sum_squares=1.0,
    )
    usual: dict[str, Any] = {
        "run": RUN,
        "index": index,
        "step": index,
        "fence": 1,
        "attempt": 1,
        "round": index,
        "previous": GENESIS,
        "elements": ELEMENTS,
        "chunk_elements": 16 * 1024,
        "codec": "fp32",
        "spans": (span,),
        "scalars": SCALARS,
        "contributions": _parts(own),
        "loss": 1.0,
        "tokens": 1,
        "samples": 1,
        "exact": True,
    }
    return whole(**(usual | changes))


def _parts(own: dict[str, Any] | None) -> tuple[Contribution, ...]:
    if own is None:
        return ()
    facts: dict[str, Any] = {"person": "", "machine": "", "weight": 1, "credit": 1, "samples": 1, "tokens": 1}
    included = tuple(ChunkRange(first, stop) for first, stop in own["ranges"])
    part = Contribution(
        peer=ME, slot=1, accumulator=own["accumulator"], units=own["units"], included=included, codec="fp16", **facts
    )
    return (part,)


def commit(index: int, own: dict[str, Any] | None = None, *, fence: int = 1, **flags: bool) -> Any:
    made = record(index, own)
    part = made.contributions[0] if made.contributions else None
    return sealed.OpenedRecord(made, "0" * 64, fence, part, **flags)
