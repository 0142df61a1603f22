"""All link messages: immutable structs, sent as MessagePack maps tagged by `type`. Any other message is refused."""

from peer_agent.protocol.messages.base import (
    MAX_HANDSHAKE,
    MAX_MESSAGE,
    PROTOCOL,
    SKETCH_BYTES,
    Attempted,
    Clock,
    Hex,
    Index,
    Message,
    Nats,
    Path,
    Seconds,
    StateDigest,
    Units,
    Wait,
)
from peer_agent.protocol.messages.data_link import (
    FetchRecords,
    FetchSpan,
    Forward,
    Forwarding,
    Leaves,
    Open,
    Probing,
    Records,
    SpanLeaves,
    SpanMissing,
)
from peer_agent.protocol.messages.handshake import Authenticate, Challenge, Refusal, Welcome
from peer_agent.protocol.messages.machine import Instructions, MachineReport
from peer_agent.protocol.messages.to_peer import (
    AccumulatorRevoked,
    Audit,
    Commit,
    Cut,
    Drop,
    Greeting,
    Lease,
    Listener,
    Listeners,
    Notice,
    Plan,
    PlanHead,
    Planned,
    PlannedSpan,
    Probe,
    Rehello,
    Reload,
    Shard,
    SitOut,
    Slot,
    Snapshot,
    Snapshotted,
    State,
    Uplink,
    Void,
)
from peer_agent.protocol.messages.to_site import (
    Arrival,
    Arrivals,
    Audited,
    Departure,
    DoneUnit,
    Have,
    Heard,
    Heartbeat,
    Hello,
    InDoubt,
    Leave,
    Offer,
    Probed,
    Progress,
    Reaches,
    Report,
    SlotRefused,
    SpanDone,
    StateHash,
    UnitsReturned,
    Weight,
)

HANDSHAKE_TO_SERVER = Authenticate
HANDSHAKE_TO_CLIENT = Challenge | Welcome
TO_SITE = (
    Hello
    | Report
    | Heartbeat
    | Reaches
    | Probed
    | StateHash
    | Offer
    | UnitsReturned
    | SpanDone
    | Have
    | Progress
    | Arrivals
    | SlotRefused
    | Records
    | Audited
    | Leave
)
TO_PEER = (
    Greeting
    | Listeners
    | Rehello
    | Lease
    | AccumulatorRevoked
    | Cut
    | SitOut
    | Planned
    | Probe
    | Audit
    | Uplink
    | Drop
    | Void
    | Commit
    | Snapshotted
    | Reload
    | State
    | Notice
)
TO_RELAY = Leaves | Probing | FetchSpan | FetchRecords
FROM_RELAY = Open | SpanLeaves | SlotRefused | SpanMissing | Records
TO_FORWARD = Forward | Forwarding
TO_MACHINE = Instructions
OF_MACHINE = MachineReport
HANDSHAKE = HANDSHAKE_TO_SERVER | HANDSHAKE_TO_CLIENT | Refusal
AnyMessage = HANDSHAKE | TO_SITE | TO_PEER | TO_RELAY | FROM_RELAY | TO_FORWARD | TO_MACHINE | OF_MACHINE
