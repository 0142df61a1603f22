"""Tables for runs and their members, roles, invitations, requests to join and timelines."""

import uuid
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import pgettext_lazy

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.reasons import LOSS_ROSE
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import parse_recipe
from runs.models.datasets import Dataset

MOST_PROMPTS, LONGEST_PROMPT = 3, 200
LONGEST_CHAT_URL = 300

Person = settings.AUTH_USER_MODEL


class Run(models.Model):
    """A model's training by many machines. `wanted` is the organizer's last request; `state` is the actual state."""

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
        FINISHED = "finished"  # finish at the current step

    class Visibility(models.TextChoices):
        PUBLIC = "public", pgettext_lazy("who may see a run", "Public")
        UNLISTED = "unlisted", pgettext_lazy("who may see a run", "Unlisted")
        PRIVATE = "private", pgettext_lazy("who may see a run", "by invitation")
        # Everyone may see the run, but only members may take part.
        REQUEST = "request", pgettext_lazy("who may see a run", "by request")

    class Role(models.TextChoices):
        ORGANIZER = "organizer", pgettext_lazy("role in a run", "organizer")
        CO_ORGANIZER = "co-organizer", pgettext_lazy("role in a run", "co-organizer")
        MODERATOR = "moderator", pgettext_lazy("role in a run", "moderator")
        # A site operator; no run grants this role.
        OPERATOR = "operator", pgettext_lazy("role in a run", "operator")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=120)
    purpose = models.TextField(blank=True)
    organizer = models.ForeignKey(Person, models.PROTECT, related_name="runs")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="runs")
    recipe = models.TextField()  # canonical JSON
    announcement = models.CharField(max_length=280, blank=True)  # the organizer's message to all visitors
    prompts = models.TextField(blank=True)  # one per line, for the model to continue at each snapshot
    # True if visitors may try the released model; null: only if it is small.
    can_be_tried = models.BooleanField(null=True, blank=True)
    automatic_steps = models.BooleanField(default=False)  # the number of steps follows from the data's size
    # Managers are alerted when fewer machines are training.
    least_machines = models.PositiveIntegerField(null=True, blank=True)
    visibility = models.CharField(max_length=8, choices=Visibility.choices, default=Visibility.PUBLIC)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DRAFT, db_index=True)
    wanted = models.CharField(max_length=10, choices=Wanted.choices, default=Wanted.NOTHING, blank=True)
    elements = models.BigIntegerField(default=0)  # length of the flat parameter vector; set with the first snapshot
    created_at = models.DateTimeField(default=timezone.now)
    opened_at = models.DateTimeField(null=True, blank=True)
    starts_at = models.DateTimeField(null=True, blank=True)  # no work before then; null: once there are enough machines
    people_goal = models.PositiveIntegerField(null=True, blank=True)  # how many people the organizer hopes for
    chat_url = models.CharField(max_length=LONGEST_CHAT_URL, blank=True)  # of the chat for people in the run
    finished_at = models.DateTimeField(null=True, blank=True)
    waiting_for = models.TextField(blank=True)  # why the run is stalled; empty while it advances
    # Log index of the snapshot that the run is being rolled back to.
    rollback_index = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = (
            models.CheckConstraint(  # so that a link on a page cannot run a script
                condition=Q(chat_url="") | Q(chat_url__startswith="https://") | Q(chat_url__startswith="http://"),
                name="chat_is_a_web_address",
            ),
        )

    def __str__(self) -> str:
        return self.title

    def later_start(self, now: datetime | None = None) -> datetime | None:
        """Return the run's start time if it lies in the future, or else None."""
        is_later = self.starts_at is not None and self.starts_at > (now or timezone.now())
        return self.starts_at if is_later else None

    @property
    def is_halted(self) -> bool:
        """True if the site has paused the run because its loss rose. `waiting_for` then has the figures."""
        return self.state == self.State.PAUSED and self.waiting_for.startswith(LOSS_ROSE.partition("{")[0])

    @property
    def run_id(self) -> RunId:
        """The run's id in protocol messages: 32 hexadecimal digits."""
        return RunId(self.id.hex)

    @property
    def members_only(self) -> bool:
        """True if only members' machines may take part. A by-request run's pages are still visible to everyone."""
        return self.visibility in (self.Visibility.PRIVATE, self.Visibility.REQUEST)

    @property
    def prompt_lines(self) -> list[str]:
        """The organizer's prompts, or one empty prompt if there are none."""
        return self.prompts.splitlines()[:MOST_PROMPTS] or [""]

    def role_of(self, person: Any) -> Role | None:
        """Return the person's role in this run, or None if they have none or have yet to accept it."""
        if person.pk == self.organizer_id:
            return self.Role.ORGANIZER
        held = self.roles.filter(person=person).exclude(accepted_at=None).values_list("role", flat=True).first()
        return self.Role(held) if held else None

    @property
    def parsed_recipe(self) -> Recipe:
        """The recipe as a struct. It was checked before being stored."""
        return parse_recipe(self.recipe)


class Invitation(models.Model):
    """A link that makes anyone holding it a member. Only the SHA-256 of its secret is stored."""

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
    """A person's membership in a run. If `removed_at` is set, the person was removed."""

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


class ActivityLine(models.Model):
    """A timeline line, as text. If `by` is set, the line records what that person did in their role."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="activity")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=20)
    text = models.CharField(max_length=300)
    names = models.TextField(blank=True)  # people named in the text, separated by spaces
    by = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")
    by_role = models.CharField(max_length=12, choices=Run.Role.choices, blank=True)  # the role of `by` at the time
    # The person affected by the action.
    on = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")
    is_internal = models.BooleanField(default=False)  # shown only to the run's managers

    class Meta:
        ordering = ("-at", "-id")
        indexes = (
            models.Index(fields=("run", "-at"), name="happening_by_time"),
            models.Index(fields=("run", "kind", "-at", "-id"), name="happening_by_kind"),
            models.Index(fields=("run", "-id"), condition=models.Q(by__isnull=False), name="trail_by_run"),
        )

    def __str__(self) -> str:
        return self.text


GIVEN = (Run.Role.CO_ORGANIZER, Run.Role.MODERATOR)


class RunRole(models.Model):
    """A person's role in a run, or an invitation to one. The row is deleted when the role or invitation ends."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="roles")
    person = models.ForeignKey(Person, models.CASCADE, related_name="run_roles")
    role = models.CharField(max_length=12, choices=[(role.value, role.label) for role in GIVEN])
    invited_at = models.DateTimeField(default=timezone.now)
    invited_by = models.ForeignKey(Person, models.PROTECT, related_name="+")
    accepted_at = models.DateTimeField(null=True, blank=True)  # null: invited but not yet accepted

    class Meta:
        ordering = ("accepted_at", "id")
        constraints = (
            models.UniqueConstraint(fields=("run", "person"), name="one_role_a_person"),
            models.CheckConstraint(condition=Q(role__in=[role.value for role in GIVEN]), name="role_can_be_given"),
        )

    def __str__(self) -> str:
        return f"{self.person_id} in {self.run_id}: {self.role}"


LONGEST_MESSAGE = 500


class JoinRequest(models.Model):
    """A person's request to join a run. The row is deleted once the request is accepted or withdrawn.

    A declined request stays, so that the person cannot ask again for a week.
    """

    run = models.ForeignKey(Run, models.CASCADE, related_name="join_requests")
    person = models.ForeignKey(Person, models.CASCADE, related_name="join_requests")
    message = models.CharField(max_length=LONGEST_MESSAGE, blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    declined_at = models.DateTimeField(null=True, blank=True)  # null: waiting for an answer

    class Meta:
        ordering = ("asked_at", "id")
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="one_request_a_person"),)

    def __str__(self) -> str:
        return f"{self.person_id} asks to join {self.run_id}"
