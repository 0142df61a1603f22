"""Shapes of the API. They are promises to other people's programs: fields are added, never changed."""

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
    """A numbered error: `docs/errors.md` has them all. `text` says all of it; `title` is for a heading."""

    code: str
    title: str
    severity: Severity
    text: str


class RunOut(Schema):
    """A run. `loss` is of the last step, in nats per token; `unigram_entropy` is what guessing by frequency costs.

    `parameters` is 0 until the run is prepared; `data_bytes` is of its shards, at most. `recipe` is everything
    that was fixed before the first step.
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
    """A file that a run learns from. `share` (0 to 1) is its part of what is dealt; `tokens` once prepared."""

    filename: str
    size: int
    licence: str
    sha256: str
    tokens: int | None
    share: float


class HeldoutOut(Schema):
    """Losses on data that nobody trains on: of the newest snapshot that was measured, and of the best."""

    loss: float
    step: int
    best_loss: float
    best_step: int


class RunDetailOut(RunOut):
    """A run, the files that it learns from, and how well it learns.

    `heldout` is null until a snapshot is measured; `passes` says how often the average sample was trained on, null
    where that differs between files; `warning` is a sentence where held-out loss rises while training loss falls;
    `released_step` is the step whose model can be downloaded, null until it can.
    """

    sources: list[SourceOut]
    heldout: HeldoutOut | None
    passes: float | None
    warning: str
    released_step: int | None


class StepOut(Schema):
    """A committed update. `update_digest` is the sha256 of its signed record; `is_undone`: the run went back before it.

    A step that was undone and made again is there twice.
    """

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
    """A person's sum over the ledger."""

    rank: int
    name: str
    samples: int
    tokens: int
    rounds: int


class AveragedOut(Schema):
    """What a person's machines, but for relays, have averaged for the others, in bytes. Nobody is ranked by it."""

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
    """A machine of the last round. `machine` is empty of a relay."""

    person: str
    machine: str
    role: str


class AveragerOut(ParticipantOut):
    """One that averages, and which part of the model (0 to 1)."""

    part: float


class LimitOut(Schema):
    """What the averaging waits for: `up` or `down` of one machine, `duplex` (both), `pair`, `household` (names none).

    `part` (0 to 1): of what the averaging would be shorter by if everything carried more.
    """

    kind: str
    machines: list[ParticipantOut]
    part: float


class PlanOut(Schema):
    """The last plan. Seconds: `planned_s` is 0 where no link is measured, `took_s` null until it is averaged.

    At most eight are named on either side; `others` are counted only.
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
    """Null before the first plan."""

    plan: PlanOut | None


class CarriedOut(Schema):
    """What one direction carries. `is_floor`: so much was seen, while nothing has shown that it is all."""

    megabits_per_s: float
    is_floor: bool


class LinkOut(ParticipantOut):
    """What the link of a machine was measured to carry; null is not measured yet."""

    up: CarriedOut | None
    down: CarriedOut | None


class SnapshotOut(Schema):
    """A verified state. `file` is its sha256, `digest` that of the log there.

    `heldout_loss`, in nats per loss unit of data that nobody trains on, is null where it is not measured (yet);
    `heldout_figures` has by name what else was measured then (shares are called accuracy). `is_best`: none has less.
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
    """Somebody who agreed to be named, and their share of all tokens (0 to 1)."""

    name: str
    share: float
    samples: int


class FactsOut(Schema):
    """What a model card says. Losses are in nats per token, `points` is the curve: step and loss.

    `unnamed` people gave something and are counted only.
    """

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
    """The agent that this site offers. The last five are null until its package has been built.

    An agent of another `protocol` cannot work here. The lines bring an older agent up to date.
    """

    version: str
    protocol: int
    url: str | None
    sha256: str | None
    size: int | None
    upgrade_pip: str | None
    upgrade_uv: str | None


class NamedFile(Schema):
    """A file by its name."""

    name: str
    sha256: str


class TokenizerOut(Schema):
    """What turns text into the run's tokens and back."""

    files: list[NamedFile]


class SnapshotTaken(Schema):
    """An uploaded state that was believed."""

    step: int
    file: str
    state_digest: str
    size: int


class RunList(Schema):
    """Runs, newest first."""

    items: list[RunOut]
    next: str | None


class StepList(Schema):
    """Steps, oldest first."""

    items: list[StepOut]
    next: str | None


class LeaderboardPage(Schema):
    """People, most samples first; and apart from them, at most a hundred by bytes averaged."""

    items: list[LeaderboardLineOut]
    averaged: list[AveragedOut]
    next: str | None


class LedgerList(Schema):
    """The ledger in the order it was written."""

    items: list[LedgerOut]
    next: str | None


class LinkList(Schema):
    """Machines that are in the run now: one's own, or all of them to its organizer."""

    items: list[LinkOut]
    next: str | None


class SnapshotList(Schema):
    """Snapshots, oldest first."""

    items: list[SnapshotOut]
    next: str | None


class MachineIn(Schema):
    """A machine that wants to be approved. `proof` signs the token's secret (purpose `manyhands request`)."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_key: Hex64
    kind: Annotated[str, Field(pattern="^(agent|relay)$")] = "agent"
    proof: Hex128


class MachineOut(Schema):
    """What the machine is called from now on, and the key with which this site signs."""

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
    """`proof` signs the device code with the machine's key (purpose `manyhands request`)."""

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
