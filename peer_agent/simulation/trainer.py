"""A virtual trainer with a real trainer's state machine. Instead of computing, it lets virtual time pass."""

import hashlib
from collections.abc import Callable, Iterable

from peer_agent.protocol import messages as m
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId
from peer_agent.protocol.log.merkle import Leaf, root_of
from peer_agent.protocol.log.records import Unit, digest_of
from peer_agent.protocol.messages import Message, Plan
from peer_agent.protocol.recipe import Codec
from peer_agent.protocol.relay.opened import Place
from peer_agent.protocol.sealed import OpenedRecord, own_part
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import advance
from peer_agent.protocol.trainer.speaking import hello_of
from peer_agent.protocol.trainer.state import Phase, new_trainer
from peer_agent.protocol.trainer.tokens import Ranges
from peer_agent.simulation.database import state_digest
from peer_agent.simulation.site import Peer, Surroundings, gradient_of, sketch_of

TICK_S = 0.5
ENCODE_S = 0.05  # seconds from the cut to the offer
LOAD_S = 2.0
APPLY_S = 0.01
UPLOAD_S = 1.0
NATS = 2.5  # loss per token


class Trainer(Peer):
    """A virtual trainer. Delays take the place of threads. Digests of names take the place of arrays."""

    role = Role.TRAINER

    def __init__(
        self, world: Surroundings, peer: PeerId, *, samples_per_s: float, latency_s: float, chunks_per_s: float
    ) -> None:
        super().__init__(world, peer, latency_s)
        self.samples_per_s, self.chunks_per_s = samples_per_s, chunks_per_s
        self.computed = 0  # samples computed so far
        self.adds = ""  # what this trainer adds to its gradients; if anything, they are not those of its units
        self.spoils = 0.0  # the share of its gradients and audits that bad memory spoils
        self.accuses = False  # True if this trainer finds other machines' gradients false
        self.damaged = False  # True if faulty memory corrupts the chunks sent by this trainer
        self.corrupt = False  # True if this trainer's replica differs from the log
        self.offer_delay_s = ENCODE_S
        self._seeds = 0  # number of random numbers drawn so far
        self._seed_of = hashlib.sha256(f"{world.seed}/accumulator/{peer}/".encode())
        self.averages: dict[tuple[int, int, int], Leaf] = {}  # leaves of spans by step, span and attempt
        self.running = 0  # units that the computing thread is working on, even if cancelled
        self.held_up: list[Callable[[], None]] = []  # jobs waiting for the computing thread
        self.forget()

    def forget(self) -> None:
        """Reset to the state of a newly started process: no replica, and a new accumulator."""
        self.lose_memory()
        self.after(TICK_S * self.world.chance.random(), self._tick)

    def lose_memory(self) -> None:
        self.core = new_trainer(self.world.run_id, self.peer, self.world.clock.now, self._seed())
        self.averages.clear()
        self.running = 0
        self.held_up.clear()

    def _seed(self) -> int:
        self._seeds += 1
        drawn = self._seed_of.copy()
        drawn.update(str(self._seeds).encode())
        return int.from_bytes(drawn.digest()[:16])

    def _tick(self) -> None:
        self.handle(e.Ticked())
        self.after(TICK_S, self._tick)

    def handle(self, event: e.Event) -> None:
        for action in advance(self.core, event, self.world.clock.now, self._seed()):
            self._carry(action)

    # --- state

    @property
    def accumulator(self) -> AccumulatorId:
        return self.core.accumulator

    @property
    def done(self) -> dict[Unit, int]:
        """Computed units that are not in an update yet, each with the step of the parameters used."""
        return {done.unit: done.base for done in self.core.done}

    @property
    def cut(self) -> m.Cut | m.SitOut | None:
        return self.core.round.cut if self.core.round is not None else None

    @property
    def weights(self) -> Ranges:
        """The loss tokens of all stored gradients, by chunk, both new and carried over."""
        return self.core.weights

    def chunks_of(self, codec: Codec) -> float:
        """Return the link's speed in chunks per second with this codec. `chunks_per_s` is for fp16."""
        return self.chunks_per_s * encoded_size("fp16", 4096) / encoded_size(codec, 4096)

    def sends(self, plan: Plan, slot: m.Slot) -> bool:
        """Return True if this trainer is now sending this slot's chunks for this plan."""
        round_ = self.core.round
        if not self.alive or self.frozen or self.core.phase is not Phase.REDUCE or round_ is None:
            return False
        if round_.plan is None or round_.slot is None or slot.peer != self.peer:
            return False
        ours = round_.plan.plan
        return (ours.step, ours.fence, ours.attempt) == (plan.step, plan.fence, plan.attempt)

    def gather(self, place: Place, span: m.PlannedSpan, leaf: Leaf) -> None:
        """Store the leaf of a span's averages in the current plan.

        When all the plan's spans have a leaf, tell the state machine.
        """
        round_ = self.core.round
        if not self.alive or round_ is None or round_.plan is None:
            return
        plan = round_.plan.plan
        if (plan.fence, plan.step) != (place.fence, place.step) or span not in plan.spans:
            return
        self.averages[place.step, span.span, span.attempt] = leaf
        held = [self.averages.get((plan.step, each.span, each.attempt)) for each in _in_order(plan)]
        if None not in held:
            self.handle(e.Gathered(plan.attempt, root_of([leaf for leaf in held if leaf]), ()))

    # --- events from outside

    def hello(self) -> m.Hello:
        now = self.world.clock.now
        advance(self.core, e.Linked(), now, self._seed())
        asked = e.Heard(m.Rehello(run=self.world.run_id, fence=0))
        advance(self.core, asked, now, self._seed())
        return hello_of(self.core)

    def give_back(self) -> None:
        self.handle(e.GaveBack())

    def leave(self) -> None:
        self.handle(e.Left())
        self.after(3 * self.latency_s, self.kill)

    def receive(self, message: Message | Plan) -> None:
        match message:
            case Plan():
                self.handle(e.PlanHeard(own_part(message, self.peer)))
            case m.Commit():
                record = self.world.database.record_of(message.record)
                own = next((part for part in record.contributions if part.peer == self.peer), None)
                digest = digest_of(message.record)
                opened = OpenedRecord(record, digest, message.fence, own, message.snapshot, message.hash_state)
                self.handle(e.CommitHeard(opened))
            case m.Audit():
                samples = sum(unit.samples for unit in message.units)
                self.after(samples / self.samples_per_s, lambda: self._audit(message))
            case _:
                self.handle(e.Heard(message))  # type: ignore[arg-type] # the host sends peers no other messages

    # --- actions

    def _carry(self, action: e.Action) -> None:
        match action:
            case e.Say():
                self.say(action.message)  # type: ignore[arg-type] # a trainer sends the site no other messages
            case e.Compute():
                self._compute(action)
            case e.Freeze() | e.Hold():
                self._open_round(action)
            case e.Load():
                self.after(LOAD_S, lambda: self._load(action))
            case e.Apply():
                self.after(APPLY_S, lambda: self._apply(action))
            case e.HandIn():
                record = self.world.database.records[action.index - 1]
                self.after(UPLOAD_S, lambda: self.world.store_snapshot(record))
            case e.HashState():
                self.after(UPLOAD_S, lambda: self._hash(action))
            case e.Quit():
                if action.fault is not None:
                    self.kill()
            case _:
                _pass_over(action)

    def _compute(self, action: e.Compute) -> None:
        if self.held_up:
            self.held_up.append(lambda: self._compute(action))
            return
        core, base = self.core, self.core.step
        self.running += 1

        def end() -> None:
            if self.core is not core:
                return  # the process that computed this has ended
            self.running -= 1
            self._finish(action, base)
            waiting, self.held_up = self.held_up, []
            for job in waiting:
                job()

        self.compute(sum(unit.samples for unit in action.units) / self.samples_per_s, end)

    def _finish(self, action: e.Compute, base: int) -> None:
        in_hand = self.core.in_hand
        if in_hand is None or in_hand.job != action.job:
            return  # the job was cancelled
        if self.world.chance.random() < self.world.non_finite:
            self.handle(e.NotFinite(action.job))
            return
        tokens = tuple(map(self._tokens_of, action.units))
        self.computed += sum(unit.samples for unit in action.units)
        self.handle(e.Computed(action.job, NATS * sum(tokens), tokens, base))

    def _tokens_of(self, unit: Unit) -> int:
        fewest, most = self.world.recipe.loss_units_in(unit.samples)
        return fewest if not unit.start else most  # a shard's first sample is the short one in each epoch

    def _open_round(self, action: e.Freeze | e.Hold) -> None:
        self.averages.clear()
        if isinstance(action, e.Freeze):
            done = list(self.core.done)  # with staleness 1, further units may be done before the offer
            self.after(self.offer_delay_s, lambda: self._freeze(action, done))

    def _freeze(self, action: e.Freeze, done: list[m.DoneUnit]) -> None:
        held = f"{self.core.accumulator} {done} {action.weights}"
        root = hashlib.sha256(held.encode()).digest()
        if self.world.trusted is not None:
            self.world.gradients[root] = self._computed((each.unit, each.base) for each in done)
        self.handle(e.Frozen(action.job, root, 1.0))

    def _audit(self, asked: m.Audit) -> None:
        based = [(unit, asked.step) for unit in asked.units] + [(unit, asked.step - 1) for unit in asked.stale]
        tokens = sum(self._tokens_of(unit) for unit, _ in based)
        chunks = sum(part.stop - part.first for part in asked.parts)
        sketch = sketch_of(self._computed(based) + "false" * self.accuses, chunks)
        self.say(
            m.Audited(run=asked.run, number=asked.number, sketch=sketch, loss_sum=NATS * tokens, loss_tokens=tokens)
        )

    def _computed(self, based: Iterable[tuple[Unit, int]]) -> str:
        """Return what stands for the gradient of units as this trainer computes it."""
        is_spoiled = bool(self.spoils) and self.world.chance.random() < self.spoils
        return gradient_of(based) + self.adds + "spoiled" * is_spoiled

    def _load(self, action: e.Load) -> None:
        self.corrupt = False
        self.handle(e.Loaded(action.job, self._digest(self.world.log_digest(action.snapshot.index))))

    def _apply(self, action: e.Apply) -> None:
        """Apply an update once no unit is being computed. Only with staleness 1 can a unit outlast its round."""
        if self.core.overlaps and self.running:
            self.held_up.append(lambda: self._apply(action))
            return
        self.handle(e.Applied(action.job, self._digest(action.record.digest)))

    def _hash(self, action: e.HashState) -> None:
        content = self._digest(self.world.log_digest(action.index)).encode()
        self.handle(e.Hashed(action.index, action.step, hashlib.sha256(content).hexdigest(), len(content)))

    def _digest(self, log: str) -> str:
        return state_digest(log, spoiled_by=self.peer if self.corrupt else None)


Words = e.Tell | e.Warn | e.Began | e.Ended | e.Show
OfFloats = e.Keep | e.Discard | e.DiscardHeld | e.Renew | e.Release | e.Settle


def _pass_over(action: Words | OfFloats | e.Dial | e.Made | e.Send | e.Serve | e.StopSending) -> None:
    """Ignore an action that concerns only people, data links or arrays.

    Virtual relays poll `sends` instead of receiving chunks.
    """
    del action


def _in_order(plan: m.PlanHead) -> list[m.PlannedSpan]:
    return sorted(plan.spans, key=lambda span: span.first)
