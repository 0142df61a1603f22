"""A run; its members, roles, invitations and requests to join; and its timeline."""

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import pgettext_lazy

from peer_agent.protocol.identifiers import RunId
from peer_agent.protocol.recipe import Recipe
from peer_agent.recipes import parse_recipe
from runs.models.datasets import Dataset

MOST_PROMPTS, LONGEST_PROMPT = 3, 200

Person = settings.AUTH_USER_MODEL


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
        PUBLIC = "public", pgettext_lazy("who may see a run", "Public")
        UNLISTED = "unlisted", pgettext_lazy("who may see a run", "Unlisted")
        PRIVATE = "private", pgettext_lazy("who may see a run", "by invitation")
        # Everybody sees it, and members alone take part
        REQUEST = "request", pgettext_lazy("who may see a run", "by request")

    class Role(models.TextChoices):
        ORGANIZER = "organizer", pgettext_lazy("role in a run", "organizer")
        CO_ORGANIZER = "co-organizer", pgettext_lazy("role in a run", "co-organizer")
        MODERATOR = "moderator", pgettext_lazy("role in a run", "moderator")
        OPERATOR = "operator", pgettext_lazy("role in a run", "operator")  # of the site; nobody is given it in a run

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=120)
    purpose = models.TextField(blank=True)
    organizer = models.ForeignKey(Person, models.PROTECT, related_name="runs")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="runs")
    recipe = models.TextField()  # canonical JSON
    announcement = models.CharField(max_length=280, blank=True)  # what its organizer tells everybody now
    prompts = models.TextField(blank=True)  # a line each: what the model continues at each snapshot
    can_be_tried = models.BooleanField(null=True, blank=True)  # by visitors, once released; null: where it is small
    automatic_steps = models.BooleanField(default=False)  # the recipe's steps follow from the size of the data
    least_machines = models.PositiveIntegerField(null=True, blank=True)  # fewer that train are worth an alert
    visibility = models.CharField(max_length=8, choices=Visibility.choices, default=Visibility.PUBLIC)
    state = models.CharField(max_length=10, choices=State.choices, default=State.DRAFT, db_index=True)
    wanted = models.CharField(max_length=10, choices=Wanted.choices, default=Wanted.NOTHING, blank=True)
    elements = models.BigIntegerField(default=0)  # of the flat parameter vector; known with the initial snapshot
    created_at = models.DateTimeField(default=timezone.now)
    opened_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    waiting_for = models.TextField(blank=True)  # why nothing moves, in words; empty while it moves
    rollback_index = models.BigIntegerField(null=True, blank=True)  # of the snapshot that it is to go back to

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.title

    @property
    def run_id(self) -> RunId:
        """The run's name on the wire: 32 hexadecimal digits."""
        return RunId(self.id.hex)

    @property
    def members_only(self) -> bool:
        """Whether only members' machines take part; of a run by request everybody sees the pages all the same."""
        return self.visibility in (self.Visibility.PRIVATE, self.Visibility.REQUEST)

    @property
    def prompt_lines(self) -> list[str]:
        """What the model continues, where it writes: the organizer's lines, else one from nothing."""
        return self.prompts.splitlines()[:MOST_PROMPTS] or [""]

    def role_of(self, person: Any) -> Role | None:
        """What somebody is in this run, once they have accepted it."""
        if person.pk == self.organizer_id:
            return self.Role.ORGANIZER
        held = self.roles.filter(person=person).exclude(accepted_at=None).values_list("role", flat=True).first()
        return self.Role(held) if held else None

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


class ActivityLine(models.Model):
    """One line of a run's timeline, in words. Those with `by` are what somebody did by their role: the trail."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="activity")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=20)
    text = models.CharField(max_length=300)
    by = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")
    by_role = models.CharField(max_length=12, choices=Run.Role.choices, blank=True)  # as it was then
    on = models.ForeignKey(Person, models.PROTECT, null=True, blank=True, related_name="+")  # whom it concerns
    is_internal = models.BooleanField(default=False)  # in the trail alone

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
    """A role that somebody holds in a run, or was invited to. Without a row it was refused, given up or taken back."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="roles")
    person = models.ForeignKey(Person, models.CASCADE, related_name="run_roles")
    role = models.CharField(max_length=12, choices=[(role.value, role.label) for role in GIVEN])
    invited_at = models.DateTimeField(default=timezone.now)
    invited_by = models.ForeignKey(Person, models.PROTECT, related_name="+")
    accepted_at = models.DateTimeField(null=True, blank=True)  # null: invited

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
    """Somebody asked. Without a row nobody did, or it was accepted, taken back or forgotten."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="join_requests")
    person = models.ForeignKey(Person, models.CASCADE, related_name="join_requests")
    message = models.CharField(max_length=LONGEST_MESSAGE, blank=True)
    asked_at = models.DateTimeField(default=timezone.now)
    declined_at = models.DateTimeField(null=True, blank=True)  # null: it waits

    class Meta:
        ordering = ("asked_at", "id")
        constraints = (models.UniqueConstraint(fields=("run", "person"), name="one_request_a_person"),)

    def __str__(self) -> str:
        return f"{self.person_id} asks to join {self.run_id}"
