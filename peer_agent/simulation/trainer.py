"""A virtual trainer: computes nothing, but holds, offers, sends and settles what a real one would."""

import hashlib
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.messages import Message, Plan
from peer_agent.protocol.records import Record, Unit
from peer_agent.simulation.peer import Peer

if TYPE_CHECKING:
    from peer_agent.simulation.world import World

REPORT_S = 2.0
ENCODE_S = 0.05  # from the cut to the offer
SYNC_S = 2.0  # snapshot and log
UPLOAD_S = 1.0


class Trainer(Peer):
    """One trainer. `tokens` are the loss tokens in each chunk of its accumulator, new and carried (rule 9)."""

    role = Role.TRAINER

    def __init__(
        self, world: "World", peer: PeerId, *, samples_per_s: float, latency_s: float, chunks_per_s: float
    ) -> None:
        super().__init__(world, peer, latency_s)
        self.samples_per_s, self.chunks_per_s = samples_per_s, chunks_per_s
        self.computed = 0  # samples
        self.damaged = False  # its memory spoils what it sends
        self.corrupt = False  # its replica differs
        self.offer_delay_s = ENCODE_S
        self.forget()

    def forget(self) -> None:
        """A process starts without a replica and with a new accumulator."""
        self.step, self.index, self.known = -1, -1, 0
        self.digest = ""
        self.syncing = False
        self.hello_at: int | None = None  # the step at which it has to say hello again
        self.cut: m.Cut | None = None
        self.attempt = 0
        self.offered: m.Offer | None = None
        self.busy = 0  # numbers what it works on
        self.working = False
        self._renew()
        self.after(REPORT_S * self.world.chance.random(), self._beat)

    def _renew(self) -> None:
        self.accumulator = self.new_accumulator()
        self.done: dict[Unit, int] = {}
        self.undone: list[Unit] = []
        self.quota = 0
        self.tokens = [0] * self.world.grid.chunks
        self._stop()

    def hello(self) -> m.Hello:
        """Everything it holds, and the attempt whose outcome it has not learned."""
        doubt = (m.InDoubt(self.cut.step, self.cut.fence, self.attempt),) if self.cut else ()
        return m.Hello(
            run=self.world.run_id,
            accumulator=self.accumulator,
            done=tuple(m.DoneUnit(unit, base) for unit, base in sorted(self.done.items())),
            undone=tuple(self.undone),
            step=self.step,
            digest="",
            fence=self.fence,
            in_doubt=doubt,
            log_index=self.index,
        )

    # --- work

    def _beat(self) -> None:
        self._report()
        self.after(REPORT_S, self._beat)

    def _report(self) -> None:
        if self.step < 0:
            return
        message = m.Report(
            run=self.world.run_id,
            accumulator=self.accumulator,
            done=tuple(m.DoneUnit(unit, base) for unit, base in self.done.items()),
            loss_tokens=self._new_tokens(),
            loss_sum=2.5 * self._new_tokens(),
            step=self.step,
            digest=self._state_digest(),
            samples_per_s=self.samples_per_s,
        )
        self.say(message)

    def _state_digest(self) -> str:
        text = f"{self.digest} {self.corrupt and self.peer}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _new_tokens(self) -> int:
        return sum(unit.samples for unit in self.done) * self.world.tokens_per_sample

    def _work(self) -> None:
        rests = sum(unit.samples for unit in self.done) >= self.quota
        if self.working or self.cut is not None or self.step < 0 or not self.undone or rests:
            return
        unit, self.working = self.undone[0], True
        self.busy += 1
        number = self.busy
        self.after(unit.samples / self.samples_per_s, lambda: self._finish(unit, number))

    def _finish(self, unit: Unit, number: int) -> None:
        if number != self.busy:
            return
        self.working = False
        self.undone.remove(unit)
        if self.world.chance.random() < self.world.non_finite:
            self.say(m.UnitsReturned(run=self.world.run_id, units=(unit,), reason="non_finite"))
        else:
            self.done[unit] = self.step
            self.computed += unit.samples
            self.tokens = [count + unit.samples * self.world.tokens_per_sample for count in self.tokens]
            self._report()
        self._work()

    def _stop(self) -> None:
        """Leave the micro-batch that is not finished."""
        self.busy += 1
        self.working = False

    def give_back(self, reason: Literal["leaving", "non_finite", "stale"] = "leaving") -> None:
        """Return leased units that are not begun."""
        units = tuple(self.undone[1:])
        self.undone = self.undone[:1]
        self.say(m.UnitsReturned(run=self.world.run_id, units=units, reason=reason))

    def leave(self) -> None:
        """Say goodbye and end."""
        self.say(m.Leave(run=self.world.run_id))
        self.after(3 * self.latency_s, self.kill)

    # --- the round

    def receive(self, message: Message | Plan) -> None:  # noqa: C901, PLR0912 - one arm per message
        """React to the host, as the real agent does."""
        if getattr(message, "fence", self.fence) < self.fence:
            return
        match message:
            case m.Greeting():
                self._greeted(message)
            case m.Lease():
                held = {*self.done, *self.undone}
                self.undone += [unit for unit in message.units if unit not in held]
                self.quota = message.quota
                self._work()
            case m.AccumulatorRevoked():
                if message.accumulator == self.accumulator:
                    self._renew()
                    self.say(self.hello())
            case m.Cut():
                if message.step == self.step:
                    self.cut, self.attempt, self.offered = message, message.attempt, None
                    self._stop()
                    self.after(self.offer_delay_s, lambda: self._offer(message))
            case Plan():
                if self.cut is not None and message.round == self.cut.round:
                    self.attempt = message.attempt
            case m.Void():
                self._voided(message)
            case m.Commit():
                self._commit(self.world.database.record_of(message.record), snapshot=message.snapshot)
            case m.Reload():
                self.corrupt = False
                self.step, self.index = -1, -1
                self._stop()
                self._sync()
            case _:
                pass

    def _voided(self, void: m.Void) -> None:
        cut = self.cut
        if cut is not None and (void.step, void.fence, void.attempt) == (cut.step, cut.fence, self.attempt):
            self._end_round()

    def _greeted(self, greeting: m.Greeting) -> None:
        self.known = max(self.known, greeting.index)
        is_new_host, self.fence = greeting.fence > self.fence, greeting.fence
        if self.step < 0:
            self._sync()
        elif greeting.step > self.step:
            self.hello_at = greeting.step
        elif not greeting.reconciled:
            self.say(self.hello())
        elif is_new_host and self.cut is not None and self.cut.fence < greeting.fence:
            self._end_round()

    def _sync(self) -> None:
        if not self.syncing:
            self.syncing = True
            self.after(SYNC_S, self._synced)

    def _synced(self) -> None:
        self.syncing = False
        self.index = self.known
        self.step = self.world.database.records[self.known - 1].step if self.known else 0
        self.digest = self._log_digest(self.known)
        if self.cut is not None and self.cut.step < self.step:
            self._end_round()
        self.say(self.hello())
        self._work()

    def _log_digest(self, index: int) -> str:
        return self.world.log_digest(index)

    def _offer(self, cut: m.Cut) -> None:
        if self.cut is not cut:
            return
        new = self._new_tokens()
        weights, position = [], 0
        for tokens, chunks in groupby(self.tokens):
            stop = position + len(list(chunks))
            weights.append(m.Weight(position, stop, tokens))
            position = stop
        self.offered = m.Offer(
            run=cut.run,
            step=cut.step,
            fence=cut.fence,
            attempt=cut.attempt,
            accumulator=self.accumulator,
            units=tuple(m.DoneUnit(unit, base) for unit, base in sorted(self.done.items())),
            weights=tuple(weights),
            loss_tokens=new or max(self.tokens),
            loss_sum=2.5 * new,
            norm=1.0,
            root=hashlib.sha256(f"{self.accumulator} {sorted(self.done)} {self.tokens}".encode()).digest(),
        )
        self.say(self.offered)

    def sends(self, plan: Plan, slot: m.Slot) -> bool:
        """Whether it is there to stream this slot of this plan."""
        root = self.offered.root if self.offered else b""
        return self.alive and not self.frozen and self.attempt == plan.attempt and root == slot.root

    def _end_round(self) -> None:
        self.cut = self.offered = None
        self._work()

    def _commit(self, record: Record, *, snapshot: bool) -> None:
        self.known = max(self.known, record.index)
        if self.step < 0:
            return
        if record.index > self.index + 1:
            self.hello_at = record.step
            self.say(self.hello())
            return
        if record.index == self.index + 1:
            self._apply(record)
        if snapshot and record.index == self.index:  # also when it is said again, to a replica that has applied it
            self.after(UPLOAD_S, lambda: self.world.store_snapshot(record))

    def _apply(self, record: Record) -> None:
        self._settle(record)
        self.step, self.index, self.digest = record.step, record.index, self._log_digest(record.index)
        if self.hello_at is not None and self.step >= self.hello_at:
            self.hello_at = None
            self.say(self.hello())
        self._report()
        self._end_round()

    def _settle(self, record: Record) -> None:
        for entry in record.contributions:
            if entry.accumulator != self.accumulator:
                continue
            for unit in entry.units:
                self.done.pop(unit, None)
            for part in (part for span in record.spans for part in span.included if entry.slot in part.slots):
                self.tokens[part.first : part.stop] = [0] * (part.stop - part.first)
