"""Tables for texts, the shards prepared from them, and uploads in progress."""

import hashlib
import json
import uuid

from django.conf import settings
from django.db import models
from django.utils import timezone

from peer_agent.protocol.errors import Fault

Person = settings.AUTH_USER_MODEL


class Dataset(models.Model):
    """A text that its organizer says may be shared, and the results of preparing it."""

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
    size = models.BigIntegerField()  # in bytes
    sha256 = models.CharField(max_length=64)
    state = models.CharField(max_length=10, choices=State.choices, default=State.UPLOADED)
    fault_code = models.CharField(max_length=8, blank=True)
    fault_text = models.TextField(blank=True)
    preparation = models.TextField(blank=True)  # the recipe's preparation settings, as JSON
    vocab = models.IntegerField(null=True, blank=True)
    tokens = models.BigIntegerField(null=True, blank=True)
    characters = models.BigIntegerField(null=True, blank=True)
    unigram_entropy = models.FloatField(null=True, blank=True)  # nats per token
    verdict = models.JSONField(null=True, blank=True)  # from peer_agent/site_work/intake
    field = models.CharField(max_length=200, blank=True)  # which field of the rows to read; if empty, the likeliest
    heldout = models.JSONField(null=True, blank=True)  # {digest, size}
    folder = models.CharField(max_length=200)  # relative to the storage folder
    # The run's first text, if this is an additional one. The first text's row has all the prepared data.
    first = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="further")
    # A file prepared together with this text: the model to adapt, or the tokenizer to use.
    base = models.ForeignKey("self", models.PROTECT, null=True, blank=True, related_name="adapted")
    # For data on the Hub: `repository`, `kind`, `files` and `commit`. There is no sha256 until the data is fetched. If
    # machines read the data directly from the Hub and only a sample is here, `streamed` is the full size in bytes.
    origin = models.JSONField(null=True, blank=True)
    vouched_by = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")
    vouched_at = models.DateTimeField(null=True, blank=True)  # when the organizer said it may be shared
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.title

    def sources(self) -> list["Dataset"]:
        """Return all texts that this dataset's runs learn from: its own, then its additional texts, oldest first."""
        return [self, *self.further.order_by("created_at", "id")]

    def parts(self) -> list["Dataset"]:
        """Return all files to prepare: the texts, and any base model or tokenizer."""
        return [*self.sources(), *filter(None, [self.base])]

    @property
    def on_hub(self) -> str:
        """The kind of Hub repository, or "" for an upload."""
        return str(self.origin["kind"]) if self.origin else ""

    @property
    def streamed(self) -> int:
        """The size of the whole dataset in bytes if machines read it from the Hub, or else 0."""
        return int((self.origin or {}).get("streamed", 0))

    @property
    def whole_size(self) -> int:
        return self.streamed or self.size

    @property
    def is_fetched(self) -> bool:
        return bool(self.sha256) or not self.origin

    @property
    def mark(self) -> str:
        """A short digest of the verdict. Publishing a run requires it, as proof that someone has seen the verdict."""
        if self.verdict is None:
            return ""
        return hashlib.sha256(json.dumps([self.preparation, self.verdict], sort_keys=True).encode()).hexdigest()[:16]

    def source_tokens(self, count: int) -> list[int]:
        """Return the number of prepared tokens in each of the `count` sources."""
        found = dict(self.shards.order_by().values_list("source").annotate(models.Sum("tokens")))
        return [found.get(place, 0) for place in range(count)]

    @property
    def fault(self) -> Fault | None:
        return Fault(self.fault_code, self.fault_text) if self.fault_code else None


class Shard(models.Model):
    """One file of tokens, named after its content: `<folder>/shards/<digest>.safetensors`."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="shards")
    position = models.IntegerField()
    digest = models.CharField(max_length=64, db_index=True)
    tokens = models.BigIntegerField()
    source = models.PositiveSmallIntegerField(default=0)  # number of the source that the shard was made from

    class Meta:
        ordering = ("position",)
        constraints = (models.UniqueConstraint(fields=("dataset", "position"), name="shard_position_once"),)

    def __str__(self) -> str:
        return f"shard {self.position}"


class Upload(models.Model):
    """A file being uploaded in pieces. Its first `offset` bytes are stored under `uploads/<id>`."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    person = models.ForeignKey(Person, models.CASCADE, related_name="uploads")
    filename = models.CharField(max_length=200)
    size = models.BigIntegerField()  # in bytes, as announced
    offset = models.BigIntegerField(default=0)
    touched_at = models.DateTimeField(default=timezone.now, db_index=True)

    def __str__(self) -> str:
        return f"{self.offset} of {self.size} bytes"
