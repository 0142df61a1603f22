"""Schemas of the API. Other people's programs rely on them, so fields are added but never changed."""

from datetime import datetime
from typing import Annotated, Any

from ninja import Path, Query, Schema
from pydantic import Field

from peer_agent.protocol.errors.entry import Severity

MOST_ITEMS, ITEMS = 1000, 100
LARGEST_ROW = 2**63 - 1

BEGINNING = "Where the page begins: the `next` of the page before."
Slug = Annotated[str, Path(description="The run's name in its address, as in `/runs/proverbs/`.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description=f"Items on a page, at most {MOST_ITEMS:,}.")]
Offset = Annotated[int, Query(ge=0, le=1_000_000_000, description=BEGINNING)]
Cursor = Annotated[int, Field(ge=0, le=LARGEST_ROW, description=BEGINNING)] | None
Hex64 = Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]
FileDigest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The file's SHA-256, in hexadecimal digits.")]
Hex128 = Annotated[str, Field(pattern="^[0-9a-fA-F]{128}$")]


class FaultOut(Schema):
    """A numbered error (see `docs/errors.md`). `text` is the whole message; `title` is a short heading."""

    code: str
    title: str
    severity: Severity
    text: str


class RunOut(Schema):
    """A run. `loss` is the loss of the last step, in nats per token.

    `unigram_entropy` is the loss from guessing by word frequency. `parameters` is 0 until the run is prepared.
    `data_bytes` is the maximum size of the run's shards in bytes. `recipe` was fixed before the first step. No work is
    given out before `starts_at`, which is null if the organizer set no time.
    """

    slug: str
    title: str
    state: str
    starts_at: datetime | None
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
    """A file that a run learns from. `share` (0 to 1) is its fraction of new samples. `tokens` is null if unknown."""

    filename: str
    size: int
    licence: str
    sha256: str
    tokens: int | None
    share: float


class HeldoutOut(Schema):
    """Losses on held-out data, for the latest measured snapshot and for the best one."""

    loss: float
    step: int
    best_loss: float
    best_step: int


class RunDetailOut(RunOut):
    """A run, the files it learns from, and how well it is learning.

    `heldout` is null until a snapshot has been measured. `passes` counts passes over the data; it is null if the count
    differs between files. `warning` is a sentence if the run is overfitting, or else empty. `released_step` is null
    until a model can be downloaded.
    """

    sources: list[SourceOut]
    heldout: HeldoutOut | None
    passes: float | None
    warning: str
    released_step: int | None


class StepOut(Schema):
    """A committed step. `update_digest` is the sha256 of its signed record.

    After a rollback, a step may appear twice: once undone and once redone.
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
    """A person's contributions to a run, summed over the ledger.

    `checked`: samples that other people's machines have confirmed by computing some of them again. The rest is
    provisional. It is null in a run for members only, which has no such checks.
    """

    rank: int
    name: str
    samples: int
    checked: int | None
    tokens: int
    rounds: int


class AveragedOut(Schema):
    """The bytes that a person's machines, except relays, have averaged for others. They do not affect the rank."""

    name: str
    bytes_averaged: int


class LedgerOut(Schema):
    """One machine's contribution to one step. `weight` is the number of tokens that count towards the loss.

    With a `reason`, the amounts are negative and take back an earlier item's credit.
    """

    step: int
    person: str
    machine: str
    reason: str
    samples: int
    tokens: int
    weight: int


class ParticipantOut(Schema):
    """A machine in the last plan. `machine` is empty for a relay."""

    person: str
    machine: str
    role: str


class AveragerOut(ParticipantOut):
    """A machine that averages. `part` is the fraction of the model that it averages (0 to 1)."""

    part: float


class LimitOut(Schema):
    """A connection that limits a step.

    `kind` is `up` or `down` for one machine, `duplex` for both of its directions, `pair` for two machines, or
    `household` for a shared connection, whose machines are not named. Without any such limits, steps would be faster;
    `part` (0 to 1) is the fraction of the saved time that is due to this one.
    """

    kind: str
    machines: list[ParticipantOut]
    part: float


class PlanOut(Schema):
    """The last plan. `planned_s` and `took_s` are in seconds.

    `planned_s` is 0 if no connection has been measured yet. `took_s` is null until the step has been averaged. At most
    eight senders and eight averagers are named; `other_senders` and `other_averagers` count the rest.
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
    """The last plan, or null before the first one."""

    plan: PlanOut | None


class CarriedOut(Schema):
    """The measured speed of a machine's connection in one direction.

    If `is_floor`, the connection may be faster, because the run has not yet used its full speed.
    """

    megabits_per_s: float
    is_floor: bool


class LinkOut(ParticipantOut):
    """The measured speeds of a machine's connection. Null means not yet measured."""

    up: CarriedOut | None
    down: CarriedOut | None


class SnapshotOut(Schema):
    """A state that machines can load.

    `file` is the sha256 of the file, and `digest` is that of the log at this entry. `heldout_loss` is the loss on
    held-out data, in nats per counted token; it is null until measured. `heldout_figures` has other figures by name;
    shares of correct answers are called accuracy. `is_best` means that no other snapshot has a lower loss.
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
    """A person who has agreed to be named, with their share of all tokens (0 to 1)."""

    name: str
    share: float
    samples: int


class VerdictOut(Schema):
    """The verdict on a run's data, for those who manage the run.

    `state` is `uploaded`, `preparing`, `ready` or `failed`. `mark` is a digest of the verdict. `verdict` has the keys
    that `manage.py inspect` prints; it is null until the data is ready.
    """

    state: str
    mark: str
    verdict: dict[str, Any] | None


class FactsOut(Schema):
    """The facts of a model card. Losses are in nats per token.

    `points` are pairs of step and loss. `unnamed` counts people who have not agreed to be named.
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
    """The agent that this site offers. The last six fields are null until setup has built the agent's package.

    `signature` is the address of the package's signature, or null if the package is not signed (`manyhands upgrade`).

    An agent with a different `protocol` cannot work with this site. The command lines `upgrade_pip` and `upgrade_uv`
    update an older agent.
    """

    version: str
    protocol: int
    url: str | None
    sha256: str | None
    size: int | None
    signature: str | None
    upgrade_pip: str | None
    upgrade_uv: str | None


class NamedFile(Schema):
    """A file's name, and its sha256."""

    name: str
    sha256: str


class TokenizerOut(Schema):
    """The files of the run's tokenizer."""

    files: list[NamedFile]


class SnapshotTaken(Schema):
    """A model state that the site has accepted from a machine."""

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
    """A page of people, most samples first. `averaged` lists up to a hundred people, most averaged bytes first."""

    items: list[LeaderboardLineOut]
    averaged: list[AveragedOut]
    next: str | None


class LedgerList(Schema):
    """A page of the ledger, in the order in which it was written."""

    items: list[LedgerOut]
    next: str | None


class LinkList(Schema):
    """A page of connections of machines now in the run. It has only your own machines, unless you manage the run."""

    items: list[LinkOut]
    next: str | None


class SnapshotList(Schema):
    """A page of snapshots, oldest first."""

    items: list[SnapshotOut]
    next: str | None


class MachineIn(Schema):
    """A machine to enroll. `proof` is its signature of the token's secret, for the purpose `manyhands request`."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_key: Hex64
    kind: Annotated[str, Field(pattern="^(agent|relay)$")] = "agent"
    proof: Hex128


class MachineOut(Schema):
    """The machine's id, its owner's name, and the public key with which this site signs."""

    machine: str
    person: str
    site_key: str


class DeviceIn(Schema):
    """A machine asking for approval in a browser. `system` describes it, as in “Linux x86_64, NVIDIA RTX 4090”."""

    name: Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_key: Hex64
    system: Annotated[str, Field(max_length=80, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    kind: Annotated[str, Field(pattern="^(agent|relay)$")] = "agent"
    run: Annotated[str, Field(max_length=80, pattern=r"^[-a-zA-Z0-9_]*$")] = ""


class DeviceOut(Schema):
    """Codes for an approval, as in RFC 8628, section 3.2. Times are in seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    expires_in: int
    interval: int


class PollIn(Schema):
    """A poll for the result of an approval.

    `proof` is the machine's signature of the device code, for the purpose `manyhands request`.
    """

    device_code: Annotated[str, Field(min_length=1, max_length=100)]
    proof: Hex128


class CredentialOut(Schema):
    """A credential that is valid for an hour, and the address where it is used.

    `credential` is signed bytes in MessagePack, encoded as base64.
    """

    credential: str
    site_key: str
    time: float
    run: str
    control: str
    slug: str
    title: str
