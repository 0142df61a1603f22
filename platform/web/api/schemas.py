"""Schemas of the API. Other people's programs rely on them: fields are added, never changed."""

from datetime import datetime
from typing import Annotated, Any

from ninja import Schema
from pydantic import Field

from peer_agent.protocol.errors.entry import Severity

MOST_ITEMS, ITEMS = 1000, 100
LARGEST_ROW = 2**63 - 1

Limit = Annotated[int, Field(ge=1, le=MOST_ITEMS)]
Cursor = Annotated[int, Field(ge=0, le=LARGEST_ROW)]
Offset = Annotated[int, Field(ge=0, le=1_000_000_000)]
Hex64 = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
FileDigest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Hex128 = Annotated[str, Field(pattern="^[0-9a-fA-F]{128}$")]


class FaultOut(Schema):
    """A numbered error (see `docs/errors.md`). `text` is the whole message; `title` is for a heading."""

    code: str
    title: str
    severity: Severity
    text: str


class RunOut(Schema):
    """A run. `loss` is the last step's, in nats per token; `unigram_entropy` is the loss of guessing by frequency.

    `parameters` is 0 until the run is prepared. `data_bytes` is the most that its shards take. `recipe` was fixed
    before the first step.
    """

    slug: str
    title: str
    state: str
    step: int
    target_steps: int
    loss: float | None
    peers_online: int
    waiting_for: str
    unigram_entropy: float | None
    parameters: int
    codec_up: str
    codec_down: str
    contributors: str
    codecs: str
    recipe: dict[str, Any]
    data_bytes: int


class SourceOut(Schema):
    """A file that a run learns from. `share` (0 to 1) is its part of new samples; `tokens` is set once prepared."""

    filename: str
    size: int
    licence: str
    sha256: str
    tokens: int | None
    share: float


class HeldoutOut(Schema):
    """Losses on held-out data: of the newest measured snapshot, and of the best."""

    loss: float
    step: int
    best_loss: float
    best_step: int


class RunDetailOut(RunOut):
    """A run, the files that it learns from, and how well it learns.

    `heldout` is null until a snapshot is measured. `passes` counts passes over the data, null if files differ in it.
    `warning` is a sentence when the run overfits. `released_step` is null until a model can be downloaded.
    """

    sources: list[SourceOut]
    heldout: HeldoutOut | None
    passes: float | None
    warning: str
    released_step: int | None


class StepOut(Schema):
    """A committed update. `update_digest` is the sha256 of its signed record. An undone step may appear twice."""

    step: int
    at: datetime
    loss: float
    tokens: int
    samples: int
    peers: int
    duration_s: float
    attempts: int
    exact: bool
    update_digest: str
    state_digest: str
    is_undone: bool


class LeaderboardLineOut(Schema):
    """A person's sums over the ledger."""

    rank: int
    name: str
    samples: int
    tokens: int
    rounds: int


class AveragedOut(Schema):
    """Bytes that a person's machines, except relays, averaged for others. They give no rank."""

    name: str
    bytes_averaged: int


class LedgerOut(Schema):
    """One machine's part in one step. `weight` is in loss tokens."""

    step: int
    person: str
    machine: str
    samples: int
    tokens: int
    weight: int


class ParticipantOut(Schema):
    """A machine in the last plan. `machine` is empty for a relay."""

    person: str
    machine: str
    role: str


class AveragerOut(ParticipantOut):
    """A machine that averages, and its part of the model (0 to 1)."""

    part: float


class LimitOut(Schema):
    """A bottleneck: `up` or `down` of one machine, `duplex` (both), `pair`, or `household` (without names).

    `part` (0 to 1) is its part of the time that faster links everywhere would save.
    """

    kind: str
    machines: list[ParticipantOut]
    part: float


class PlanOut(Schema):
    """The last plan. In seconds: `planned_s` is 0 if no link is measured, `took_s` null until it is averaged.

    At most eight machines are named on either side; `other_…` counts the rest.
    """

    step: int
    planned_s: float
    took_s: float | None
    is_void: bool
    senders: list[ParticipantOut]
    other_senders: int
    averagers: list[AveragerOut]
    other_averagers: int
    limits: list[LimitOut]


class LastPlan(Schema):
    """The last plan; null before the first."""

    plan: PlanOut | None


class CarriedOut(Schema):
    """The speed of one direction. `is_floor`: at least this, since more was never needed."""

    megabits_per_s: float
    is_floor: bool


class LinkOut(ParticipantOut):
    """The measured speed of a machine's link; null is not measured yet."""

    up: CarriedOut | None
    down: CarriedOut | None


class SnapshotOut(Schema):
    """A state that replicas can load. `file` is its sha256, `digest` the log's there.

    `heldout_loss`, in nats per loss unit of held-out data, is null while not measured. `heldout_figures` holds other
    figures by name (shares are called accuracy). `is_best`: none has less.
    """

    index: int
    step: int
    digest: str
    state_digest: str
    file: str
    size: int
    created_at: datetime
    heldout_loss: float | None
    heldout_figures: dict[str, float]
    is_best: bool


class NamedPerson(Schema):
    """A person who agreed to be named, and their share of all tokens (0 to 1)."""

    name: str
    share: float
    samples: int


class FactsOut(Schema):
    """A model card's facts. Losses: nats per token. `points`: step and loss. `unnamed` people are only counted."""

    slug: str
    title: str
    purpose: str
    address: str
    steps: int
    loss: float
    heldout_loss: float | None
    heldout_step: int | None
    heldout_figures: dict[str, float]
    best_heldout_loss: float | None
    best_heldout_step: int | None
    is_overfitting: bool
    unigram_entropy: float | None
    samples: int
    tokens: int
    people: list[NamedPerson]
    unnamed: int
    unnamed_share: float
    unnamed_samples: int
    points: list[tuple[int, float]]
    data_title: str
    data_licence: str
    data_vouched: str


class AgentOut(Schema):
    """The agent that this site offers. The last five fields are null until its package is built.

    An agent of another `protocol` cannot work here; the two lines update it.
    """

    version: str
    protocol: int
    url: str | None
    sha256: str | None
    size: int | None
    upgrade_pip: str | None
    upgrade_uv: str | None


class NamedFile(Schema):
    """A file and its sha256."""

    name: str
    sha256: str


class TokenizerOut(Schema):
    """The files of the run's tokenizer."""

    files: list[NamedFile]


class SnapshotTaken(Schema):
    """An accepted upload of a state."""

    step: int
    file: str
    state_digest: str
    size: int


class RunList(Schema):
    """A page of runs, newest first."""

    items: list[RunOut]
    next: str | None


class StepList(Schema):
    """A page of steps, oldest first."""

    items: list[StepOut]
    next: str | None


class LeaderboardPage(Schema):
    """People, most samples first; separately, at most a hundred by bytes averaged."""

    items: list[LeaderboardLineOut]
    averaged: list[AveragedOut]
    next: str | None


class LedgerList(Schema):
    """The ledger in the order it was written."""

    items: list[LedgerOut]
    next: str | None


class LinkList(Schema):
    """Machines in the run now: your own, or all for its organizer."""

    items: list[LinkOut]
    next: str | None


class SnapshotList(Schema):
    """A page of snapshots, oldest first."""

    items: list[SnapshotOut]
    next: str | None


class MachineIn(Schema):
    """A machine to approve. `proof` signs the token's secret (purpose `manyhands request`)."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_key: Hex64
    kind: Annotated[str, Field(pattern="^(agent|relay)$")] = "agent"
    proof: Hex128


class MachineOut(Schema):
    """The machine's name from now on, and the key with which this site signs."""

    machine: str
    person: str
    site_key: str


class DeviceIn(Schema):
    """A machine that asks to be approved in a browser. `system` is for people: “Linux x86_64, NVIDIA RTX 4090”."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_key: Hex64
    system: Annotated[str, Field(max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    kind: Annotated[str, Field(pattern="^(agent|relay)$")] = "agent"
    run: Annotated[str, Field(max_length=80, pattern=r"^[-a-zA-Z0-9_]*$")] = ""


class DeviceOut(Schema):
    """As in RFC 8628, section 3.2. Times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class PollIn(Schema):
    """A poll. `proof` signs the device code with the machine's key (purpose `manyhands request`)."""

    device_code: Annotated[str, Field(min_length=1, max_length=100)]
    proof: Hex128


class CredentialOut(Schema):
    """A credential for an hour, and where to use it. `credential` is base64 of MessagePack of the signed bytes."""

    credential: str
    site_key: str
    time: float
    run: str
    control: str
    slug: str
    title: str
