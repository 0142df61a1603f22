"""What a hostile puppet is: a sound core of a trainer or a relay, and a behaviour that changes what it says.

A behaviour is data and plain functions (what it knows) -> (what is said). It knows neither sockets nor clocks: the
virtual puppet of `puppet.py` and the real one of `tests/benchmarks/hostile.py` carry out the same.
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

Word = m.Message | bytes  # bytes: as they are, whether they can be decoded or not
LinkPattern = Literal["steady", "comes and goes", "two sockets", "copied home"]
TICK_S = 0.5  # between two calls of `adds`


class Memory(Struct, kw_only=True):
    """What a puppet knows when it speaks. `others`: accumulators of others, which public records name."""

    run: RunId
    me: PeerId
    chance: Random
    core: TrainerState | RelayState
    ticks: int = 0
    cut: m.Cut | None = None
    plan: m.PlanHead | None = None
    roots: dict[int, bytes] = field(default_factory=dict)  # of spans that others have averaged, where it found out
    others: deque[AccumulatorId] = field(default_factory=lambda: deque(maxlen=16))

    def hear(self, message: m.Message | m.PlanHead) -> None:
        """Keep the newest of what it will speak of."""
        match message:
            case m.Cut():
                self.cut = message
            case m.PlanHead():
                self.plan = message

    def hello(self, **changed: Any) -> m.Hello:
        """What a sound peer would say, but for some fields."""
        core = self.core
        hello = hello_of(core) if isinstance(core, TrainerState) else hello_of_relay(core)
        return msgspec.structs.replace(hello, **changed)

    def place(self) -> dict[str, Any]:
        """Of the attempt that it heard of last: what each of its messages names."""
        newest = max((heard for heard in (self.cut, self.plan) if heard is not None), key=_age, default=None)
        if newest is None:
            return {"run": self.run, "step": 0, "fence": 1, "attempt": 1}
        return {"run": self.run, "step": newest.step, "fence": newest.fence, "attempt": newest.attempt}

    def is_tick(self, every: int) -> bool:
        """Whether this is one of every so many ticks."""
        return self.ticks % every == 0


def _age(heard: m.Cut | m.PlanHead) -> tuple[int, int, int]:
    return heard.fence, heard.step, heard.attempt


Says = Callable[[Memory, m.Message], Iterable[Word]]  # in place of what a sound peer says
Answers = Callable[[Memory, m.Message | m.PlanHead], Iterable[Word]]  # to what it hears, beside that
Adds = Callable[[Memory], Iterable[Word]]  # unasked, each tick


def as_it_is(memory: Memory, message: m.Message) -> Iterable[Word]:
    """What a sound peer says."""
    del memory
    return (message,)


def silence(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    """Nothing."""
    del memory, message
    return ()


def nothing(memory: Memory) -> Iterable[Word]:
    """Nothing."""
    del memory
    return ()


class Behaviour(Struct, frozen=True, kw_only=True):
    """One row: a fault, what the puppet does about it, and what must be counted, or it did nothing.

    `computes`: units before computing hangs; None: all. `chunks_per_s`: at which a slot is sent; None: as others do.
    `damaged`: the bytes sent are not those offered. `bites`: what the puppet's account or the run's notes must name;
    `never`: what they must not.
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
    on_wire: bool = True  # whether it makes sense with real processes


def spoiled(message: m.Message, **values: Any) -> bytes:
    """A message with fields that no encoder would write: too large, not a number, unknown."""
    fields: dict[str, Any] = msgspec.msgpack.decode(encode(message)[1:])
    return bytes([Kind.MESSAGE]) + msgspec.msgpack.encode(fields | values)


def changed(kind: type[m.Message], **values: Any) -> Says:
    """Messages of a kind are said with other values; everything else as it is."""

    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return (msgspec.structs.replace(message, **values) if isinstance(message, kind) else message,)

    return says


def written(kind: type[m.Message], **values: Any) -> Says:
    """The same with values that the message's own type would not take."""

    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return (spoiled(message, **values) if isinstance(message, kind) else message,)

    return says


def without(*kinds: type[m.Message]) -> Says:
    """Messages of these kinds are not said."""

    def says(memory: Memory, message: m.Message) -> Iterable[Word]:
        del memory
        return () if isinstance(message, kinds) else (message,)

    return says


def times(count: int, make: Callable[[Memory], Word], *, every: int = 1) -> Adds:
    """So many messages with each tick, or with every so many."""

    def adds(memory: Memory) -> Iterable[Word]:
        return [make(memory) for _ in range(count)] if memory.is_tick(every) else ()

    return adds
