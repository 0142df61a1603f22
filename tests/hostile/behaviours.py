"""Hostile puppets: the honest core of a trainer or a relay, and a behaviour that alters the core's messages.

A behaviour consists of data and of plain functions from `Memory` to messages, without sockets or clocks, so the
virtual puppet in `puppet.py` and the real one in `tests/benchmarks/hostile.py` can run the same behaviours.
"""

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import AccumulatorId, PeerId, RunId
from peer_agent.protocol.relay.advance import hello as hello_of_relay
from peer_agent.protocol.relay.state import RelayState
from peer_agent.protocol.trainer.speaking import hello_of
from peer_agent.protocol.trainer.state import TrainerState
from peer_agent.protocol.wire import Kind, encode

Word = m.Message | bytes  # bytes are sent as they are, even if the site cannot decode them
LinkPattern = Literal["steady", "comes and goes", "two sockets", "copied home"]
TICK_S = 0.5  # seconds between two calls of `adds`


class Memory(Struct, kw_only=True):
    """A puppet's knowledge when it sends a message. `others`: other peers' accumulators, taken from the public
    records.
    """

    run: RunId
    me: PeerId
    chance: Random
    core: TrainerState | RelayState
    ticks: int = 0
    cut: m.Cut | None = None
    plan: m.PlanHead | None = None
    # roots of spans that other peers averaged, as far as the puppet can know them
    roots: dict[int, bytes] = field(default_factory=dict)
    others: deque[AccumulatorId] = field(default_factory=lambda: deque(maxlen=16))

    def hear(self, message: m.Message | m.PlanHead) -> None:
        match message:
            case m.Cut():
                self.cut = message
            case m.PlanHead():
                self.plan = message

    def hello(self, **changed: Any) -> m.Hello:
        """Return an honest peer's hello, with some fields changed."""
        core = self.core
        hello = hello_of(core) if isinstance(core, TrainerState) else hello_of_relay(core)
        return msgspec.structs.replace(hello, **changed)

    def place(self) -> dict[str, Any]:
        """Return the fields that identify the newest attempt that the puppet has heard of."""
        newest = max((heard for heard in (self.cut, self.plan) if heard is not None), key=_age, default=None)
        if newest is None:
            return {"run": self.run, "step": 0, "fence": 1, "attempt": 1}
        return {"run": self.run, "step": newest.step, "fence": newest.fence, "attempt": newest.attempt}

    def is_tick(self, every: int) -> bool:
        return self.ticks % every == 0


def _age(heard: m.Cut | m.PlanHead) -> tuple[int, int, int]:
    return heard.fence, heard.step, heard.attempt


Says = Callable[[Memory, m.Message], Iterable[Word]]  # messages sent in place of a sound peer's message
Answers = Callable[[Memory, m.Message | m.PlanHead], Iterable[Word]]  # messages added in response to a received message
Adds = Callable[[Memory], Iterable[Word]]  # messages added on each tick


def as_it_is(memory: Memory, message: m.Message) -> Iterable[Word]:
    del memory
    return (message,)


def silence(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    del memory, message
    return ()


def nothing(memory: Memory) -> Iterable[Word]:
    del memory
    return ()


class Behaviour(Struct, frozen=True, kw_only=True):
    """One row of the table: a fault, the puppet's actions, and the counts that prove they took place.

    `computes`: how many units it computes before hanging; None means it never hangs. `chunks_per_s`: a slot's sending
    rate; None means the normal rate. `damaged`: the bytes sent are not those offered. `bites`: entries that the
    puppet's account or the run's notes must contain. `never`: entries that they must not contain.
    """

    name: str
    fault: str
    bites: tuple[str, ...]
    never: tuple[str, ...] = ()
    role: Role = Role.TRAINER
    machines: int = 1
    says: Says = as_it_is
    answers: Answers = silence
    adds: Adds = nothing
    computes: int | None = None
    chunks_per_s: float | None = None
    damaged: bool = False
    link: LinkPattern = "steady"
    on_wire: bool = True  # whether the row makes sense with real processes


def spoiled(message: m.Message, **values: Any) -> bytes:
    """Encode a message with field values that no encoder would write: too large, not a number, or unknown."""
    fields: dict[str, Any] = msgspec.msgpack.decode(encode(message)[1:])
    return bytes([Kind.MESSAGE]) + msgspec.msgpack.encode(fields | values)


def changed(kind: type[m.Message], **values: Any) -> Says:
    """Send messages of one kind with other values, and all other messages as they are."""

    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return (msgspec.structs.replace(message, **values) if isinstance(message, kind) else message,)

    return says


def written(kind: type[m.Message], **values: Any) -> Says:
    """Send messages of one kind with values that the message's own type rejects."""

    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return (spoiled(message, **values) if isinstance(message, kind) else message,)

    return says


def without(*kinds: type[m.Message]) -> Says:
    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return () if isinstance(message, kinds) else (message,)

    return says


def times(count: int, make: Callable[[Memory], Word], *, every: int = 1) -> Adds:
    """Return a function that adds `count` messages once every `every` ticks."""

    def adds(memory: Memory) -> Iterable[Word]:
        return [make(memory) for _ in range(count)] if memory.is_tick(every) else ()

    return adds
