"""The coordinator's database writes. A task performs them in order and returns their results to the host as events.

While the host holds its claim, the task retries failed writes after a pause. During this time, the host keeps handling
messages and ticks.
"""

import asyncio
import logging
import time
from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct

from config.metrics import COMMIT_S, ROUND_S, ROUNDS
from coordination import snapshots, store
from coordination.channel_layer.process import Channel
from coordination.hosts.claims import RETRY_S, Holding
from coordination.threads import in_thread
from peer_agent.protocol.coordinator import events as e
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.records import Entry, read_record, seal
from peer_agent.protocol.messages import Hello
from peer_agent.protocol.sealed import SealedCommit
from peer_agent.protocol.wire import encode
from runs import timeline
from runs.models import Run

log = logging.getLogger(__name__)

WAITING = 1_000  # most queued writes; beyond this, any not needed for training are dropped
DRAIN_S = 5.0  # seconds for the remaining writes when a host ends
PAGE, PAGE_BYTES = 64, 1024 * 1024  # limits on commits and bytes in a page of the log sent to a peer


class Answered(Struct, frozen=True):
    """A message from the writer to the host, carrying the event that a write produced."""

    event: e.Event


class PageRead(Struct, frozen=True):
    """Encoded commits for `peer`, passed from the writer to the host. `last` is the index of the last one."""

    peer: PeerId
    page: list[bytes]
    last: int


class Listens(Struct, frozen=True):
    """A command to store the address at which peers can reach a relay, from the relay's hello."""

    peer: PeerId
    hello: Hello


Write = (
    e.Persist
    | e.Adopt
    | e.Branch
    | e.Reserve
    | e.LeftOut
    | e.Resend
    | e.Agreed
    | e.Note
    | e.Waiting
    | e.Replay
    | e.Elected
    | e.Admitted
    | e.Checked
    | e.Reverse
    | e.Halt
    | e.Recheck
    | e.Heeded
    | Listens
)


class Writer:
    def __init__(self, run: Run, holding: Holding, key: Ed25519PrivateKey, mailbox: Channel) -> None:
        self.run, self.holding, self.key, self.mailbox = run, holding, key, mailbox
        self._asked: asyncio.Queue[Write | None] = asyncio.Queue()
        self._persisting: int | None = None  # index of the record now being written
        self._resending: set[PeerId] = set()

    def ask(self, command: Write) -> None:
        """Queue a command for writing, unless it is a commit or resend that is already queued.

        If `WAITING` commands are queued, drop commands that training does not need.
        """
        if isinstance(command, e.Note) and command.kind == timeline.VOID:
            ROUNDS.labels(self.run.slug, "void", command.cause).inc()
        match command:
            case e.Persist(record=record):
                if self._persisting == record.index:
                    return
                self._persisting = record.index
            case e.Resend(peer=peer):
                if peer in self._resending:
                    return
                self._resending.add(peer)
            case e.Note() | e.Waiting() | e.Agreed() | e.Replay() | Listens() if self._asked.qsize() >= WAITING:
                log.warning("run %s: not written, since too much waits: %s", self.run.slug, command)
                return
        self._asked.put_nowait(command)

    async def work(self) -> None:
        while (command := await self._asked.get()) is not None:
            await self.holding.insist(partial(self._write, command))

    def drain(self) -> None:
        self._asked.put_nowait(None)

    async def _write(self, command: Write) -> None:  # noqa: C901, PLR0912 - one arm per command
        match command:
            case e.Persist():
                await self._persist(command)
            case e.Adopt():
                added = await in_thread(store.adopt)(self.run, self.holding.fence, command.records)
                self._answer(e.Adopted(command.peer, added))
            case e.Branch():
                await in_thread(store.credit_branch)(self.run, self.holding.fence, command.records)
            case e.Reserve():
                await in_thread(store.raise_marks)(self.run, self.holding.fence, command.marks)
                self._answer(e.Reserved(command.marks))
            case e.LeftOut():
                await in_thread(store.abandon)(self.run, self.holding.fence, command.units)
            case e.Resend():
                await self._resend(command)
            case e.Agreed():
                await in_thread(store.agree)(self.run, command.step, command.digest)
            case e.Checked():
                await in_thread(store.check)(self.run, self.holding.fence, command)
            case e.Reverse():
                await in_thread(store.reverse_credit)(self.run, self.holding.fence, command)
            case e.Halt():
                await in_thread(store.halt)(self.run, self.holding.fence, command.reason)
            case e.Recheck():
                await in_thread(store.recheck)(self.run, self.holding.fence, command)
            case e.Heeded():
                await in_thread(store.heed)(self.run, self.holding.fence, command.number)
            case e.Note(kind=kind, text=text, names=names):
                await in_thread(timeline.add_line)(run=self.run, kind=kind, text=text, names=names)
            case e.Waiting():
                await in_thread(store.set_waiting)(self.run, command.reason)
            case e.Replay() | e.Elected() | e.Admitted():
                await in_thread(snapshots.carry_out)(self.run, command)
            case Listens():
                await in_thread(snapshots.note_listener)(command.peer, command.hello)

    async def _persist(self, command: e.Persist) -> None:
        try:
            sealed = seal(self.key, command.record)
        except Problem:
            log.exception("run %s: a round is void", self.run.slug)
            self._persisting = None
            self._answer(e.Persisted("refused"))
            return
        if command.record.kind == "rollback":
            outcome = await in_thread(store.roll_back)(self.run, sealed, command.record)
        else:
            outcome = await self._commit(sealed, command)
        if outcome == "failed":
            await asyncio.sleep(RETRY_S)
        self._persisting = None
        self._answer(e.Persisted(outcome, sealed))

    async def _commit(self, sealed: Entry, command: e.Persist) -> store.Outcome:
        began = time.monotonic()
        outcome = await in_thread(store.commit)(
            self.run, sealed, command.record, duration_s=command.duration_s, attempts=command.attempts
        )
        if outcome == "committed":
            COMMIT_S.labels(self.run.slug).observe(time.monotonic() - began)
            ROUND_S.labels(self.run.slug).observe(command.duration_s)
            ROUNDS.labels(self.run.slug, outcome, "").inc()
        return outcome

    async def _resend(self, command: e.Resend) -> None:
        page = await in_thread(page_of)(self.run, self.holding.fence, command)
        self._resending.discard(command.peer)
        self.mailbox.put_first(PageRead(command.peer, page, command.first + len(page) - 1))

    def _answer(self, event: e.Event) -> None:
        self.mailbox.put_first(Answered(event))


def page_of(run: Run, fence: int, command: e.Resend) -> list[bytes]:
    """Return up to PAGE encoded commits, totaling at most PAGE_BYTES unless a single commit is longer."""
    page: list[bytes] = []
    for entry in store.sealed_from(run, command.first, min(command.count, PAGE)):
        sealed = SealedCommit(entry, read_record(entry))
        data = encode(sealed.whole(fence) if command.whole else sealed.to(command.peer, fence))
        if page and sum(map(len, page)) + len(data) > PAGE_BYTES:
            break
        page.append(data)
    return page
