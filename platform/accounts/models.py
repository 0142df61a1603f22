"""Tables for people, their machines and their tokens."""

import uuid
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext_lazy

from accounts.names import LONGEST, look_of, validate_name
from peer_agent.protocol.identifiers import PeerId

KEY_BYTES = 32
RELAY_KEEPER = "operator"  # the person who owns the relay that `serve` starts; this person cannot log in
FORMER = "former-volunteer-"  # prefix of the name of a deleted account
LOOK_LENGTH = 200  # characters; one character of a name can look like several


class PersonManager(BaseUserManager["Person"]):
    def create_user(self, username: str, password: str | None = None, **fields: Any) -> "Person":
        """Create a person. A person without a password cannot log in."""
        person = self.model(username=self.model.normalize_username(username), **fields)
        person.set_password(password)
        person.save(using=self._db)
        return person

    def create_superuser(self, username: str, password: str | None = None, **fields: Any) -> "Person":
        return self.create_user(username, password, is_staff=True, is_superuser=True, **fields)


class Person(AbstractBaseUser, PermissionsMixin):
    """A person. `username` is the public name, and the only thing that the site requires a person to provide."""

    username = models.CharField(
        "name",
        max_length=LONGEST,
        unique=True,
        validators=[validate_name],
        error_messages={"unique": gettext_lazy("That name is taken.")},
    )
    # What the name looks like (`names.look_of`). None for a deleted account, and where two names were alike already.
    look = models.CharField(max_length=LOOK_LENGTH, unique=True, null=True, editable=False)
    is_staff = models.BooleanField(default=False)  # an operator of this site
    is_active = models.BooleanField(default=True)
    date_joined = models.DateTimeField(default=timezone.now)
    # The page at /people/<name>/; if False, only the person can see it.
    has_public_page = models.BooleanField(default=True)
    session_epoch = models.PositiveIntegerField(default=0, editable=False)  # raising this number ends all sessions

    objects = PersonManager()

    USERNAME_FIELD = "username"
    REQUIRED_FIELDS: ClassVar[list[str]] = []

    class Meta:
        verbose_name_plural = "people"
        constraints = (
            models.UniqueConstraint(
                Lower("username"),
                name="person_name_unique_in_any_case",
                violation_error_message=gettext_lazy("That name is taken."),
            ),
        )

    def __str__(self) -> str:
        return self.username

    def save(self, **options: Any) -> None:
        if self._state.adding:
            self.look = look_of(self.username)[:LOOK_LENGTH]
        super().save(**options)

    def get_session_auth_hash(self) -> str:
        """Return the hash that a session must match. A new password or `session_epoch` changes the hash."""
        secret = f"{self.password}:{self.session_epoch}"
        return salted_hmac("accounts.models.Person.session", secret, algorithm="sha256").hexdigest()


class Machine(models.Model):
    """A device that a person has approved. Protocol messages identify it by its `peer_id`."""

    class Kind(models.TextChoices):
        AGENT = "agent"
        RELAY = "relay"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    person = models.ForeignKey(Person, models.PROTECT, related_name="machines")
    name = models.CharField(max_length=60)
    public_key = models.BinaryField(max_length=KEY_BYTES, unique=True)  # Ed25519, 32 bytes
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.AGENT)
    created_at = models.DateTimeField(default=timezone.now)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    is_barred = models.BooleanField(default=False)  # revoked by an operator, so that its owner cannot restore it

    class Meta:
        ordering = ("created_at",)

    def __str__(self) -> str:
        return self.name

    @property
    def peer_id(self) -> PeerId:
        """The machine's id in protocol messages: 32 hexadecimal digits."""
        return PeerId(self.id.hex)


class MachineControl(models.Model):
    """An owner's instructions for a machine, and its last report. No row means that the owner has changed nothing.

    The owner's pages write `instructions`; the machine's connection writes `report`. Both are JSON encodings of
    protocol structs: `Instructions` and `MachineReport`.
    """

    machine = models.OneToOneField(Machine, models.CASCADE, primary_key=True, related_name="control")
    revision = models.PositiveIntegerField(default=0)
    instructions = models.TextField(default="{}")
    changed_at = models.DateTimeField(default=timezone.now, db_index=True)
    report = models.TextField(blank=True)
    reported_at = models.DateTimeField(null=True, blank=True)  # None once the machine has disconnected

    def __str__(self) -> str:
        return f"what is wanted of {self.machine_id}"


class PastOwner(models.Model):
    """A former owner of a machine. If that person's account is closed, the site also rejects the machine's key."""

    machine = models.ForeignKey(Machine, models.CASCADE, related_name="past_owners")
    person = models.ForeignKey(Person, models.CASCADE, related_name="+")
    until = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (models.UniqueConstraint(fields=("machine", "person"), name="past_owner_once"),)

    def __str__(self) -> str:
        return f"{self.machine_id} worked for {self.person_id}"


class DeviceRequest(models.Model):
    """A machine's request for approval (RFC 8628). Only the sha256 of its device code is stored."""

    class State(models.TextChoices):
        WAITING = "waiting"
        APPROVED = "approved"
        DECLINED = "declined"
        USED = "used"  # approved, and the machine has collected the approval

    device_digest = models.CharField(max_length=64, unique=True)
    user_code = models.CharField(max_length=8, unique=True)  # without the dash
    name = models.CharField(max_length=60)
    public_key = models.BinaryField(max_length=KEY_BYTES)
    system = models.CharField(max_length=80)
    kind = models.CharField(max_length=8, choices=Machine.Kind.choices, default=Machine.Kind.AGENT)
    # The run's slug as sent by the machine. There may be no such run.
    run = models.CharField(max_length=80, blank=True)
    address = models.CharField(max_length=45, blank=True)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    person = models.ForeignKey(
        Person, models.CASCADE, related_name="device_requests", null=True, blank=True
    )  # the person who approved or declined it
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = (
            models.CheckConstraint(
                condition=models.Q(state="waiting", person=None)
                | (~models.Q(state="waiting") & models.Q(person__isnull=False)),
                name="device_request_answered_by_somebody",
            ),
        )

    def __str__(self) -> str:
        return self.shown_code

    @property
    def shown_code(self) -> str:
        """The code as displayed to people, such as BCDF-GHJK."""
        return f"{self.user_code[:4]}-{self.user_code[4:]}"


class Token(models.Model):
    """A secret that the site shows only once.

    Only its SHA-256 is stored. This is safe, because the secret has 256 random bits.
    """

    class Purpose(models.TextChoices):
        MACHINE = "machine"  # admits one machine, once
        API = "api"  # grants API access, as the person

    person = models.ForeignKey(Person, models.CASCADE, related_name="tokens")
    purpose = models.CharField(max_length=8, choices=Purpose.choices)
    label = models.CharField(max_length=60, blank=True)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.label or f"{self.purpose} token"


class Team(models.Model):
    """A team: people whose contributions are counted together.

    Only the SHA-256 of the secret in its invitation link is stored.
    """

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=40)
    leader = models.ForeignKey(Person, models.PROTECT, related_name="teams_led")
    link_digest = models.CharField(max_length=64, blank=True)  # empty if no invitation link works
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = (
            models.UniqueConstraint(
                Lower("name"),
                name="team_name_unique_in_any_case",
                violation_error_message=gettext_lazy("That name is taken."),
            ),
        )

    def __str__(self) -> str:
        return self.name


class TeamMember(models.Model):
    """A person's membership in a team, in UTC days. Samples contributed during the membership count for the team."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="members")
    person = models.ForeignKey(Person, models.CASCADE, related_name="in_teams")
    joined_day = models.IntegerField()  # days since 1970; the first day whose samples count for the team
    left_day = models.IntegerField(null=True, blank=True)  # the first day whose samples no longer count

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.UniqueConstraint(fields=("person",), condition=models.Q(left_day=None), name="team_one_at_a_time"),
        )

    def __str__(self) -> str:
        return f"{self.person_id} in {self.team_id}"
