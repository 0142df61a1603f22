"""The table of what the coordinator does about whatever is overdue. `acting` executes it; the docs print it.

Everything that the coordinator waits for is an item of some kind (`awaited`). The first row of that kind whose facts
all hold decides about an overdue item. If there is none, the coordinator goes on waiting. The table never decides whose
gradient is in an average: reducers close chunks, and records say whose gradients were in them (rule 7).
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from peer_agent.protocol.coordinator.reliability import Failure


class Kind(StrEnum):
    """The kinds of awaited items. The values complete the sentence "The coordinator waits for ..."."""

    SESSION = "a word from a peer"
    UNIT = "a trainer's next unit"
    LOAD = "a trainer that loads the model"
    BATCH = "a full batch"
    REPLICA = "a trainer that applies the last update"
    OFFER = "a trainer's offer"
    SPAN = "a reducer's averages"
    UPLOAD = "a trainer's gradient at a reducer"
    COPY = "a second copy of all averages"
    ROUND = "any progress of the round"
    WRITE = "the database"
    SNAPSHOT = "a snapshot from the trainer elected to upload it"
    DIGEST = "a majority for the model's digest"
    HASH = "a majority for a snapshot's hash"


class Fact(StrEnum):
    """The facts about an overdue item that decide which row applies."""

    UNAVAILABLE = "it has been silent for three usual times, or never delivered"
    REQUIRED = "without it, too little is left"
    ISOLATED = "its senders go on sending to other reducers"
    SILENT = "it has missed its reports"
    COMPLETE = "it has every chunk"
    LONG = "nothing has moved anywhere for too long"
    STUCK = "nothing has moved anywhere for far too long"
    OTHER_DONE = "another reducer has finished"
    OTHER_FREE = "another reducer is free"
    OTHER_ABLE = "another reducer can take over"
    STOPPED = "it sends nothing while others do"
    UNFINISHED = "the others have been done for a long time"
    LATE = "the reducer closed more than a batch of chunks without it"
    REFUSED = "the reducer finds its bytes wrong"
    DISPUTED = "it is disputed"
    DURABLE = "a relay has all averages"


class Action(StrEnum):
    """The consequences of an overdue item."""

    EVICT = "end its session"
    SUSPEND = "count on it no longer"
    ASK_HELLO = "ask it for a hello"
    RAISE_QUOTAS = "let others compute more"
    PROCEED = "go on without it"
    DROP = "drop its gradient from the round"
    REPLACE = "give the reducer's part to others"
    WAIT = "wait"
    COMMIT = "commit"
    VOID = "end the round without an update"
    PERSIST = "send the record again"
    ELECT = "elect another trainer"
    REPLAY = "ask the site to replay the log"


class Row(NamedTuple):
    """One row of the table. `failure`: what is recorded against the machine (`reliability`), if anything."""

    kind: Kind
    facts: tuple[Fact, ...]
    action: Action
    failure: Failure | None = None


ROWS = (
    Row(Kind.SESSION, (), Action.EVICT),
    Row(Kind.UNIT, (Fact.UNAVAILABLE,), Action.SUSPEND),
    Row(Kind.UNIT, (), Action.ASK_HELLO),
    Row(Kind.LOAD, (), Action.ASK_HELLO),
    Row(Kind.BATCH, (), Action.RAISE_QUOTAS),
    Row(Kind.REPLICA, (), Action.PROCEED),
    Row(Kind.OFFER, (Fact.REQUIRED,), Action.VOID, Failure.MISSED),
    Row(Kind.OFFER, (), Action.PROCEED, Failure.MISSED),
    Row(Kind.SPAN, (Fact.ISOLATED,), Action.REPLACE, Failure.FAILED),
    Row(Kind.SPAN, (Fact.SILENT, Fact.OTHER_DONE), Action.REPLACE, Failure.FAILED),
    Row(Kind.SPAN, (Fact.COMPLETE, Fact.OTHER_DONE), Action.REPLACE, Failure.FAILED),
    Row(Kind.SPAN, (Fact.LONG, Fact.OTHER_DONE, Fact.DISPUTED), Action.REPLACE),
    Row(Kind.SPAN, (Fact.LONG, Fact.OTHER_DONE), Action.REPLACE, Failure.FAILED),
    Row(Kind.SPAN, (Fact.STUCK, Fact.OTHER_FREE), Action.REPLACE, Failure.FAILED),
    Row(Kind.UPLOAD, (Fact.REFUSED, Fact.DISPUTED, Fact.REQUIRED, Fact.OTHER_ABLE), Action.REPLACE),
    Row(Kind.UPLOAD, (Fact.REFUSED, Fact.DISPUTED), Action.DROP),
    Row(Kind.UPLOAD, (Fact.REFUSED, Fact.REQUIRED, Fact.OTHER_ABLE), Action.REPLACE, Failure.FAILED),
    Row(Kind.UPLOAD, (Fact.REFUSED,), Action.DROP, Failure.REFUSED),
    Row(Kind.UPLOAD, (Fact.LATE, Fact.DISPUTED), Action.WAIT),
    Row(Kind.UPLOAD, (Fact.LATE,), Action.DROP, Failure.LATE),
    Row(Kind.UPLOAD, (Fact.DISPUTED, Fact.REQUIRED, Fact.OTHER_DONE), Action.REPLACE),
    Row(Kind.UPLOAD, (Fact.DISPUTED, Fact.UNFINISHED, Fact.OTHER_DONE), Action.REPLACE),
    Row(Kind.UPLOAD, (Fact.DISPUTED,), Action.WAIT),
    Row(Kind.UPLOAD, (Fact.STOPPED, Fact.REQUIRED, Fact.OTHER_DONE), Action.REPLACE, Failure.FAILED),
    Row(Kind.UPLOAD, (), Action.DROP, Failure.MISSED),
    Row(Kind.COPY, (Fact.DURABLE,), Action.COMMIT),
    Row(Kind.ROUND, (), Action.VOID, Failure.FAILED),
    Row(Kind.WRITE, (), Action.PERSIST),
    Row(Kind.SNAPSHOT, (), Action.ELECT),
    Row(Kind.DIGEST, (), Action.REPLAY),
    Row(Kind.HASH, (), Action.REPLAY),
)


def decide(kind: Kind, holds: Callable[[Fact], bool]) -> Row | None:
    """Return the first row for this kind of item whose facts all hold, or None: wait.

    `holds` tells whether a fact holds. It is asked only about the facts of rows that come into question.
    """
    return next((row for row in ROWS if row.kind is kind and all(map(holds, row.facts))), None)
