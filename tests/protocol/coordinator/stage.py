"""A coordinator on its own. The test plays its clock, its database and its peers, message by message.

The peers send exactly what the test tells them to, and compute nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.coordinator.advance import TICK_S, advance
from peer_agent.protocol.coordinator.facts import StoredFacts, restored
from peer_agent.protocol.coordinator.round.reducing import gathered_root
from peer_agent.protocol.coordinator.state import Audit, Member, Phase, Round, RunState
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.log.records import GENESIS, Entry, Included, Record, Unit, seal
from peer_agent.protocol.messages import Shard, Snapshot
from peer_agent.protocol.recipe import encode_recipe
from peer_agent.recipes.causal_lm import CausalLM, Model

RUN = RunId("aa" * 16)
KEY = Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32)
ELEMENTS = 8 * 16 * 1024
CONTEXT = 16
TOKENS = CONTEXT - 1  # per sample
UNIT = 4  # samples


def peer_of(name: str) -> PeerId:
    return PeerId(name.encode().hex().ljust(32, "0")[:32])


SKETCH = np.arange(1, 257, dtype="<f4").tobytes()  # of every gradient, unless `Stage.sketches` has another


def audit_of(sketch: bytes, answer: m.Audited, **facts: Any) -> Audit:
    """Return an audit by `b` of a contribution by `a`: what was averaged and stated, and the answer."""
    usual: dict[str, Any] = {
        "peer": PeerId("a"),
        "name": "a",
        "person": "a",
        "auditor": PeerId("b"),
        "auditing": "b",
        "round": 1,
        "slot": 0,
        "samples": 1,
        "loss_sum": answer.loss_sum,
        "loss_tokens": answer.loss_tokens,
        "parts": (),
        "codec": "fp16",
    }
    return Audit(**{**usual, **facts}, sketch=sketch, answer=answer)


def first_snapshot() -> Snapshot:
    return Snapshot(index=0, step=0, digest=GENESIS, state_digest="", file="0" * 64, size=0)


class Trainer:
    """The accumulator, units and log position that one machine reports."""

    def __init__(self, name: str, person: str) -> None:
        self.name, self.person, self.peer = name, person, peer_of(name)
        self.accumulator = AccumulatorId(("ac" + name.encode().hex()).ljust(32, "0")[:32])
        self.done: dict[Unit, int] = {}
        self.undone: list[Unit] = []
        self.quota = 0
        self.step, self.index, self.carried = 0, 0, 0
        self.digest = ""

    @property
    def samples(self) -> int:
        return sum(unit.samples for unit in self.done)


class Stage:
    """A run whose clock advances only when the test advances it."""

    def __init__(
        self,
        *,
        batch: int = 24,
        steps: int = 1000,
        snapshot_every: int = 1000,
        staleness: Literal[0, 1] = 0,
        values: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """Create a run. `values` are further fields of the recipe."""
        recipe = CausalLM(
            **(values or {}),
            staleness=staleness,
            model=Model(context=CONTEXT),
            target_batch=batch,
            micro_batch=UNIT,
            target_steps=steps,
            snapshot_every=snapshot_every,
        )
        given = {
            "run": RUN,
            "slug": "slug",
            "title": "Title",
            "fence": 1,
            "recipe": recipe,
            "recipe_bytes": encode_recipe(recipe),
            "elements": ELEMENTS,
            "shards": (Shard("0" * 64, 10_000 * CONTEXT),),
            "site_key": public_bytes(KEY),
            "snapshot": first_snapshot(),
        }
        self.state: RunState = restored(StoredFacts(**{**given, **facts}))
        self.now = 1000.0
        self.names = 0
        self.seed = 1  # of the coordinator's random choices
        self.sketches: dict[PeerId, bytes] = {}  # of peers whose gradients have others than SKETCH
        self.trainers: dict[PeerId, Trainer] = {}
        self.said: list[e.Command] = []  # all commands so far
        self.records: list[Record] = []
        self.gathers = True  # whether a trainer reports automatically when it has all averages
        self.logs: dict[PeerId, int] = {}  # log length of each log keeper whose log is incomplete
        self.lose: set[tuple[PeerId, type[m.Message]]] = set()  # messages that do not arrive
        self.deaf: dict[PeerId, m.Heard | None] = {}  # peers that report to have heard no more than this

    # --- events

    def handle(self, event: e.Event) -> list[e.Command]:
        """Handle an event, then play the responses of the database and the peers to the commands."""
        commands = advance(self.state, event, self.now, self.seed)
        self.said += commands
        for command in commands:
            if isinstance(command, e.Reserve):
                self.handle(e.Reserved(command.marks))
            elif isinstance(command, e.Send):
                for peer in command.peers:
                    self._arrive(peer, command.message)
        return commands

    def _arrive(self, peer: PeerId, message: m.Message) -> None:
        trainer = self.trainers.get(peer)
        if trainer is None or (peer, type(message)) in self.lose:
            return
        if isinstance(message, m.Lease):
            trainer.undone += [unit for unit in message.units if unit not in (*trainer.done, *trainer.undone)]
            trainer.quota = message.quota
        elif isinstance(message, m.AccumulatorRevoked) and message.accumulator == trainer.accumulator:
            self.begin_anew(trainer)

    def begin_anew(self, trainer: Trainer) -> None:
        self.names += 1
        trainer.accumulator = AccumulatorId(f"{self.names:032x}")
        trainer.done, trainer.undone = {}, []
        self.hello(trainer)

    def say(self, peer: PeerId, message: m.TO_SITE) -> list[e.Command]:
        return self.handle(e.Received(peer, message))

    def tick(self) -> list[e.Command]:
        return self.handle(e.Ticked())

    def wait(self, seconds: float, *, alive: bool = True) -> list[e.Command]:
        """Let time pass in ticks. If `alive`, all the members send heartbeats."""
        commands: list[e.Command] = []
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now = min(end, self.now + TICK_S)
            if alive:
                for member in list(self.state.members.values()):
                    index = self.index_of(member)
                    beat = m.Heartbeat(run=RUN, index=index, heard=self.heard_by(member))
                    commands += self.say(member.peer, beat)
            commands += self.tick()
        return commands

    def heard_by(self, member: Member) -> m.Heard | None:
        """Return what a member reports of the open round: everything, unless it is deaf."""
        round_ = self.state.round
        if member.peer in self.deaf:
            return self.deaf[member.peer]
        if round_ is None:
            return None
        own = [slot for slot in round_.dropped if round_.slots[slot].peer == member.peer]
        count = len(own) if member.trains else len(round_.dropped)
        place = self.state.step, self.state.fence, round_.attempt
        return m.Heard(*place, has_plan=round_.is_planned, dropped=count)

    def index_of(self, member: Member) -> int:
        trainer = self.trainers.get(member.peer)
        return trainer.index if trainer is not None else self.logs.get(member.peer, self.state.index)

    # --- peers

    def trainer(self, name: str, person: str = "") -> Trainer:
        trainer = Trainer(name, person or name)
        self.trainers[trainer.peer] = trainer
        trainer.step, trainer.index = self.state.step, self.state.index
        self.hello(trainer)
        return trainer

    def hello(self, trainer: Trainer, **said: Any) -> list[e.Command]:
        hello = m.Hello(
            **said,
            run=RUN,
            accumulator=trainer.accumulator,
            done=tuple(m.DoneUnit(unit, base) for unit, base in trainer.done.items()),
            undone=tuple(trainer.undone),
            carried=trainer.carried,
            step=trainer.step,
            log_index=trainer.index,
        )
        return self.handle(e.Joined(trainer.peer, trainer.person, trainer.name, Role.TRAINER, hello))

    def relay(self, name: str = "relay", role: Role = Role.RELAY, person: str = "operator", **said: Any) -> PeerId:
        """Add a member that reduces and keeps the log. `said` may change fields in its hello."""
        hello: dict[str, Any] = {"url": "ws://relay", "reduces": True, "keeps_log": True, "log_index": self.state.index}
        message = m.Hello(run=RUN, accumulator=AccumulatorId("00" * 16), **{**hello, **said})
        self.handle(e.Joined(peer_of(name), person, name, role, message))
        return peer_of(name)

    def member(self, trainer: Trainer) -> Member:
        return self.state.members[trainer.peer]

    # --- work

    def compute(self, trainer: Trainer, units: int = 1) -> list[e.Command]:
        """Let a trainer finish and report leased units, within its quota."""
        while units and trainer.undone and trainer.samples < trainer.quota:
            trainer.done[trainer.undone.pop(0)] = trainer.step
            units -= 1
        return self.report(trainer)

    def report(self, trainer: Trainer, **said: Any) -> list[e.Command]:
        fields: dict[str, Any] = {
            "accumulator": trainer.accumulator,
            "done": tuple(m.DoneUnit(unit, base) for unit, base in trainer.done.items()),
            "loss_tokens": trainer.samples * TOKENS,
            "loss_sum": 1.0,
            "step": trainer.step,
            "index": trainer.index,
            "digest": trainer.digest,
            "undone": len(trainer.undone),
        }
        return self.say(trainer.peer, m.Report(run=RUN, **{**fields, **said}))

    def accumulate(self, *trainers: Trainer, unit_s: float = 1.0, limit_s: float = 600.0) -> None:
        """Let each trainer finish a unit every `unit_s` until the coordinator cuts the batch. Fail after `limit_s`."""
        end = self.now + limit_s
        while self.state.phase is Phase.ACCUMULATE:
            assert self.now < end, f"no batch in {limit_s} s: {self.state.waiting}"
            self.wait(unit_s)
            for trainer in trainers or self.trainers.values():
                if self.state.phase is Phase.ACCUMULATE:
                    self.compute(trainer)

    # --- a round

    @property
    def round(self) -> Round:
        assert self.state.round is not None
        return self.state.round

    def place(self) -> dict[str, Any]:
        return {"run": RUN, "step": self.state.step, "fence": self.state.fence, "attempt": self.round.attempt}

    def offer(self, trainer: Trainer, **said: Any) -> list[e.Command]:
        tokens = trainer.samples * TOKENS
        fields: dict[str, Any] = {
            "accumulator": trainer.accumulator,
            "units": tuple(m.DoneUnit(unit, base) for unit, base in sorted(trainer.done.items())),
            "weights": (m.Weight(0, grid_of(ELEMENTS).chunks, tokens + trainer.carried),),
            "loss_tokens": tokens or trainer.carried,
            "loss_sum": 2.5 * tokens,
            "norm": 1.0,
            "root": trainer.peer.encode(),
        }
        return self.say(trainer.peer, m.Offer(**self.place(), **{**fields, **said}))

    def offers(self, *trainers: Trainer) -> None:
        for trainer in trainers:
            if self.state.phase is Phase.OFFER and trainer.samples:
                self.offer(trainer)

    def close(self, limit_s: float = 100.0) -> None:
        end, number = self.now + limit_s, self.state.rounds
        while self.state.phase is Phase.OFFER and self.state.rounds == number and self.now < end:
            self.wait(TICK_S)

    def span_done(self, span: m.PlannedSpan, without: Iterable[int] = (), **said: Any) -> list[e.Command]:
        slots = tuple(slot for slot in range(len(self.round.slots)) if slot not in without)
        fields: dict[str, Any] = {
            "span": span.span,
            "root": bytes([span.span % 256]) * 32,
            "sum_squares": self.squares(span),
            "included": (Included(span.first, span.stop, slots),),
        }
        if self.round.seed:
            fields["sketches"] = tuple(
                self.sketches.get(slot.peer, SKETCH) if number in slots else b""
                for number, slot in enumerate(self.round.slots)
            )
        return self.say(span.reducer, m.SpanDone(**self.place(), **{**fields, **said})) + self._gather()

    def squares(self, span: m.PlannedSpan) -> float:
        """Return the sum of squares of a span of an average whose norm is 1, as all gradients' norms are."""
        return (span.stop - span.first) / self.state.grid.chunks

    def have(self, peer: PeerId, span: m.PlannedSpan, **said: Any) -> list[e.Command]:
        """Let a peer report that it has a span on disk, with what the span's reducer reported of it."""
        done = self.round.done[span.span]
        fields: dict[str, Any] = {"span": span.span, "root": done.root, "sum_squares": done.sum_squares}
        return self.say(peer, m.Have(**self.place(), **{**fields, **said}))

    def _gather(self) -> list[e.Command]:
        """Let the first trainer report, once all spans are done, that it has all the averages."""
        round_ = self.state.round
        if self.state.phase is not Phase.REDUCE or round_ is None or round_.done_at is None or not self.gathers:
            return []
        trainer = next((member.peer for member in self.state.members.values() if member.trains), None)
        return self.gathered(trainer) if trainer is not None else []

    def gathered(self, peer: PeerId, **said: bytes) -> list[e.Command]:
        holds = said["holds"] if "holds" in said else gathered_root(self.round)
        return self.say(peer, m.Arrivals(**self.place(), arrivals=(), holds=holds))

    def spans(self) -> tuple[m.PlannedSpan, ...]:
        assert self.round.plan is not None
        return self.round.plan.spans

    def reduce(self, without: Iterable[int] = ()) -> None:
        for span in self.spans():
            if self.state.phase is Phase.REDUCE and not span.root and span.span not in self.round.done:
                self.span_done(span, without)

    def persist(self) -> Record:
        assert self.round.record is not None
        record = self.round.record
        self.records.append(record)
        self.handle(e.Persisted("committed", sealed(record)))
        for trainer in self.trainers.values():
            if (trainer.peer, m.Commit) not in self.lose:
                self.apply(trainer, record)
        return record

    def apply(self, trainer: Trainer, record: Record) -> list[e.Command]:
        for entry in record.contributions:
            if entry.accumulator == trainer.accumulator:
                for unit in entry.units:
                    trainer.done.pop(unit, None)
        trainer.step, trainer.index = record.step, record.index
        return self.report(trainer) if trainer.peer in self.state.members else []

    def commit(self, *trainers: Trainer, unit_s: float = 1.0) -> Record:
        mine = trainers or tuple(self.trainers.values())
        self.accumulate(*mine, unit_s=unit_s)
        self.offers(*mine)
        self.close()
        self.reduce()
        return self.persist()


def sealed(record: Record) -> Entry:
    return seal(KEY, record)


def sent(commands: Iterable[e.Command], kind: type[m.Message], peer: PeerId | None = None) -> list[m.Message]:
    return [
        command.message
        for command in commands
        if isinstance(command, e.Send) and isinstance(command.message, kind)
        if peer is None or peer in command.peers
    ]


def notes(commands: Iterable[e.Command]) -> list[str]:
    return [command.kind for command in commands if isinstance(command, e.Note)]
