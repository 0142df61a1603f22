"""Tables of runs. A run is a replicated log: `LogEntry` is the log, `Head` its end, `Snapshot` where replicas begin."""

import uuid
from typing import Any, NoReturn

from django.conf import settings
from django.db import models
from django.utils import timezone

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.log.records import GENESIS
from peer_agent.protocol.recipe import Recipe, parse_recipe
from runs.verification_models import RefusedSnapshot, RelayAddress, ReplayRequest, Verification

__all__ = ["RefusedSnapshot", "RelayAddress", "ReplayRequest", "Verification"]  # Django finds tables here

Person = settings.AUTH_USER_MODEL


class Dataset(models.Model):
    """A text that somebody may share, and what its preparation made of it."""

    class State(models.TextChoices):
        UPLOADED = "uploaded"
        PREPARING = "preparing"
        READY = "ready"
        FAILED = "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organizer = models.ForeignKey(Person, models.PROTECT, related_name="datasets")
    title = models.CharField(max_length=120)
    licence = models.CharField(max_length=200)
    filename = models.CharField(max_length=200)
    size = models.BigIntegerField()  # bytes
    sha256 = models.CharField(max_length=64)
    state = models.CharField(max_length=10, choices=State.choices, default=State.UPLOADED)
    fault_code = models.CharField(max_length=8, blank=True)
    fault_text = models.TextField(blank=True)
    vocab = models.IntegerField(null=True, blank=True)
    tokens = models.BigIntegerField(null=True, blank=True)
    characters = models.BigIntegerField(null=True, blank=True)
    unigram_entropy = models.FloatField(null=True, blank=True)  # nats per token
    pieces = models.JSONField(null=True, blank=True)
    heldout = models.JSONField(null=True, blank=True)  # {digest, tokens}
    folder = models.CharField(max_length=200)  # relative to the storage folder
    vouched_by = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")
    vouched_at = models.DateTimeField(null=True, blank=True)  # when somebody said that the text may be shared
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.title


class Shard(models.Model):
    """One content-addressed file of tokens: `<folder>/shards/<digest>.safetensors`."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="shards")
    position = models.IntegerField()
    digest = models.CharField(max_length=64, db_index=True)
    tokens = models.BigIntegerField()

    class Meta:
        ordering = ("position",)
        constraints = (models.UniqueConstraint(fields=("dataset", "position"), name="shard_position_once"),)

    def __str__(self) -> str:
        return f"shard {self.position}"


class Run(models.Model):
    """One collaboration. `wanted` is what the organizer asked for last, `state` what is."""

    class State(models.TextChoices):
        DRAFT = "draft"
        PREPARING = "preparing"
        OPEN = "open"
        PAUSED = "paused"
        FINISHING = "finishing"
        FINISHED = "finished"

    class Wanted(models.TextChoices):
        NOTHING = ""
        OPEN = "open"
        PAUSED = "paused"
        FINISHED = "finished"  # at the present step

    class Visibility(models.TextChoices):
        PUBLIC = "public"
        UNLISTED = "unlisted"
        PRIVATE = "private", "by invitation"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=120)
    purpose = models.TextField(blank=True)
    organizer = models.ForeignKey(Person, models.PROTECT, related_name="runs")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="runs")
    recipe = models.TextField()  # canonical JSON
    visibility = models.CharField(max_length=8, choices=Visibility.choices, default=Visibility.PUBLIC)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DRAFT, db_index=True)
    wanted = models.CharField(max_length=10, choices=Wanted.choices, default=Wanted.NOTHING, blank=True)
    elements = models.BigIntegerField(default=0)  # of the flat parameter vector; known with the initial snapshot
    created_at = models.DateTimeField(default=timezone.now)
    opened_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    waiting_for = models.TextField(blank=True)  # why nothing moves, in words; empty while it moves

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.title

    @property
    def run_id(self) -> RunId:
        """The run's name on the wire: 32 hexadecimal digits."""
        return RunId(self.id.hex)

    @property
    def parsed_recipe(self) -> Recipe:
        """The recipe as a struct; it was checked when it was stored."""
        return parse_recipe(self.recipe)


class Invitation(models.Model):
    """A link that makes whoever has it a member. Only the sha256 of its secret is kept."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="invitations")
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    most_uses = models.PositiveIntegerField(null=True, blank=True)
    uses = models.PositiveIntegerField(default=0)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return f"invitation to {self.run_id}"


class Member(models.Model):
    """Somebody who may see a run by invitation, until they are removed."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="members")
    person = models.ForeignKey(Person, models.CASCADE, related_name="memberships")
    invitation = models.ForeignKey(Invitation, models.SET_NULL, null=True, blank=True, related_name="members")
    joined_at = models.DateTimeField(default=timezone.now)
    removed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("joined_at", "id")
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="member_once_a_run"),)

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}"


class Upload(models.Model):
    """A text that comes in pieces: `uploads/<id>` in storage holds its first `offset` bytes."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    person = models.ForeignKey(Person, models.CASCADE, related_name="uploads")
    filename = models.CharField(max_length=200)
    size = models.BigIntegerField()  # bytes, as announced
    offset = models.BigIntegerField(default=0)
    pending = models.BinaryField(max_length=3, default=b"")  # of a character that is cut between two pieces
    touched_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.offset} of {self.size} bytes"


class Head(models.Model):
    """The end of a run's log, and the claim of the one process that may move it (rules 3 and 16)."""

    run = models.OneToOneField(Run, models.PROTECT, primary_key=True, related_name="head")
    index = models.BigIntegerField(default=0)  # entries committed
    step = models.BigIntegerField(default=0)  # updates committed
    digest = models.CharField(max_length=64, default=GENESIS)  # of the last record
    fence = models.IntegerField(default=0)
    owner = models.CharField(max_length=200, blank=True)
    claim_expires = models.DateTimeField(null=True, blank=True)
    void_rounds = models.BigIntegerField(default=0)  # rounds that could not finish (runs.timeline counts them)

    def __str__(self) -> str:
        return f"step {self.step}"


class LogEntry(models.Model):
    """One committed entry: the facts that pages and lists need. Narrow, because they read hundreds at a time."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="log")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    at = models.DateTimeField(default=timezone.now)
    digest = models.CharField(max_length=64)
    loss = models.FloatField()  # mean nats over the round's loss tokens
    tokens = models.BigIntegerField()
    samples = models.BigIntegerField()
    peers = models.IntegerField()
    duration_s = models.FloatField()
    attempts = models.IntegerField()
    exact = models.BooleanField()
    state_digest = models.CharField(max_length=16, blank=True)

    class Meta:
        ordering = ("index",)
        verbose_name_plural = "log entries"
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="log_index_once"),)
        indexes = (models.Index(fields=("run", "step"), name="log_by_step"),)

    def __str__(self) -> str:
        return f"entry {self.index}"


class SealedRecord(models.Model):
    """The bulk of a log entry (54 kB with 200 machines). Read and written by `runs.ledger.sealed_records` alone."""

    entry = models.OneToOneField(LogEntry, models.PROTECT, primary_key=True, related_name="sealed")
    payload = models.BinaryField()
    signature = models.BinaryField()
    contributions = models.BinaryField(default=b"")  # beside a signed head; empty where the payload holds them

    def __str__(self) -> str:
        return f"record of entry {self.entry_id}"


class LedgerQuerySet(models.QuerySet["LedgerEntry"]):
    """Rows are added and read, nothing else."""

    def update(self, **_: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")

    def delete(self) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")


class LedgerEntry(models.Model):
    """One machine's averaged-in work in one committed entry. Credit is read from here and from nowhere else."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="ledger")
    entry = models.ForeignKey(LogEntry, models.PROTECT, related_name="contributions")
    step = models.BigIntegerField()
    person = models.ForeignKey(Person, models.PROTECT, related_name="contributions")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="contributions")
    samples = models.BigIntegerField()
    tokens = models.BigIntegerField()
    credit = models.BigIntegerField()  # token-elements
    weight = models.BigIntegerField()  # loss tokens

    objects = LedgerQuerySet.as_manager()

    class Meta:
        ordering = ("id",)
        verbose_name_plural = "ledger entries"
        constraints = (models.UniqueConstraint(fields=("entry", "machine"), name="ledger_machine_once_an_entry"),)
        # With the samples, so that what people gave lately is read from it alone.
        indexes = (models.Index(fields=("run", "person", "step", "samples"), name="ledger_by_person_and_step"),)

    def __str__(self) -> str:
        return f"{self.samples} samples in step {self.step}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Raises TypeError on a row that exists."""
        if not self._state.adding:
            raise TypeError("the ledger is append-only")
        super().save(*args, **kwargs)

    def delete(self, *_: Any, **__: Any) -> NoReturn:
        """Raises TypeError."""
        raise TypeError("the ledger is append-only")


class MachineTotal(models.Model):
    """What a machine has given to a run: written with each commit (`ledger.totals`), audited against the ledger."""

    run = models.ForeignKey(Run, models.PROTECT, related_name="totals")
    machine = models.ForeignKey("accounts.Machine", models.PROTECT, related_name="totals")
    person = models.ForeignKey(Person, models.PROTECT, related_name="totals")
    samples = models.BigIntegerField(default=0)
    tokens = models.BigIntegerField(default=0)
    credit = models.BigIntegerField(default=0)  # token-elements; stays at the largest value that the column holds
    rounds = models.BigIntegerField(default=0)
    person_rounds = models.BigIntegerField(default=0)  # those that count for its person here; one in each round does
    last_step = models.BigIntegerField(default=0)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "machine"), name="total_machine_once_a_run"),)
        indexes = (models.Index(fields=("run", "person"), name="total_by_person"),)

    def __str__(self) -> str:
        return f"{self.samples} samples of {self.machine_id}"


class LeaseMark(models.Model):
    """How far a shard's samples have ever been leased in an epoch: raised before a lease is granted (rule 11)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="marks")
    epoch = models.BigIntegerField()
    shard = models.IntegerField()
    mark = models.BigIntegerField()

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="lease_mark_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {self.mark}"


class Coverage(models.Model):
    """Which samples of a shard are in committed updates of an epoch. Written with each commit (`ledger.coverage`)."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="coverage")
    epoch = models.BigIntegerField()
    shard = models.BigIntegerField()
    ranges = models.JSONField()  # [[start, stop), …] in ascending order; no two overlap or touch
    left_out = models.JSONField(default=list)  # likewise: in no update, since no gradient of them was finite

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "epoch", "shard"), name="coverage_once"),)

    def __str__(self) -> str:
        return f"epoch {self.epoch}, shard {self.shard}: {len(self.ranges)} ranges"


class Snapshot(models.Model):
    """A state at `step`: `runs/<run>/snapshots/<file>.safetensors` in storage. Newcomers may load it."""

    class State(models.TextChoices):
        ADMITTED = "admitted"  # most people's copies have this hash
        VERIFIED = "verified"  # the site's own replay of the log, from a verified one, gave it
        ANCHOR = "anchor"  # the newest of a run begun with version 1, whose early bytes are gone: replays begin here

    TRUSTED = (State.VERIFIED, State.ANCHOR)  # replays begin at these, and these may be released

    run = models.ForeignKey(Run, models.PROTECT, related_name="snapshots")
    index = models.BigIntegerField()
    step = models.BigIntegerField()
    digest = models.CharField(max_length=64, default=GENESIS)  # of the log there
    state_digest = models.CharField(max_length=16)
    file = models.CharField(max_length=64, db_index=True)  # sha256, hex
    size = models.BigIntegerField()  # bytes
    created_at = models.DateTimeField(default=timezone.now)
    is_stored = models.BooleanField(default=True)  # its file is there (runs.snapshots.retention)
    state = models.CharField(max_length=8, choices=State.choices, default=State.ADMITTED)
    verified_at = models.DateTimeField(null=True, blank=True)
    heldout_loss = models.FloatField(null=True, blank=True)  # mean nats; null until it is measured, if it ever is

    class Meta:
        ordering = ("-index",)
        constraints = (models.UniqueConstraint(fields=("run", "index"), name="snapshot_index_once"),)

    def __str__(self) -> str:
        return f"snapshot at step {self.step}"


class Happening(models.Model):
    """One line of a run's timeline, in words."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="happenings")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=20)
    text = models.CharField(max_length=300)

    class Meta:
        ordering = ("-at", "-id")
        indexes = (
            models.Index(fields=("run", "-at"), name="happening_by_time"),
            models.Index(fields=("run", "kind", "-at", "-id"), name="happening_by_kind"),
        )

    def __str__(self) -> str:
        return self.text


class Release(models.Model):
    """What people download once the run has reached its last step."""

    class State(models.TextChoices):
        PREPARING = "preparing"
        READY = "ready"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.PROTECT, related_name="release")
    state = models.CharField(max_length=10, choices=State.choices, default=State.PREPARING)
    folder = models.CharField(max_length=200, blank=True)  # relative to the storage folder
    files = models.JSONField(default=list, blank=True)  # [{name, size, sha256}]
    archive = models.CharField(max_length=200, blank=True)  # name of the file that holds all others
    sample = models.TextField(blank=True)  # what the model writes
    named = models.JSONField(default=list, blank=True)  # names of people on its card
    created_at = models.DateTimeField(default=timezone.now)
    fault = models.TextField(blank=True)

    def __str__(self) -> str:
        return f"release of {self.run_id}"


class NamedHand(models.Model):
    """Someone who wants to be named on the card of a run's model. Without a row they are counted, not named."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="named")
    person = models.ForeignKey(Person, models.CASCADE, related_name="+")
    agreed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="named_once"),)

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}"


class HubAccount(models.Model):
    """An organizer's account on the Hub. The token is sealed (`accounts.encryption`) and never shown again."""

    person = models.OneToOneField(Person, models.CASCADE, related_name="hub_account")
    name = models.CharField(max_length=100)
    namespaces = models.JSONField(default=list)  # where the token may write
    sealed_token = models.TextField()
    saved_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name


class Publication(models.Model):
    """A run's release on the Hub, as its organizer wants it and as it is."""

    class State(models.TextChoices):
        WAITING = "waiting"
        SENDING = "sending"
        PUBLISHED = "published"
        FAILED = "failed"

    run = models.OneToOneField(Run, models.CASCADE, related_name="publication")
    repository = models.CharField(max_length=200)  # NAMESPACE/NAME
    private = models.BooleanField(default=False)
    replace = models.BooleanField(default=False)  # files of the same name that somebody else put there
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    commit = models.CharField(max_length=64, blank=True)  # the last one that we made
    url = models.CharField(max_length=300, blank=True)  # where it is, once it was published
    fault = models.TextField(blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    published_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.repository
