"""The forms on an organizer's pages: for descriptions, drafts and their files, members, roles and invitations."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.core.validators import URLValidator
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Material, OnHub
from runs.access import outranks
from runs.datasets.services import SourceLine
from runs.models import Release, Run
from runs.models.run import LONGEST_CHAT_URL, LONGEST_MESSAGE
from web.pages.runs.forms.new_run import (
    NO_LICENCE,
    TEXTS,
    NewRunForm,
    brings_one,
    field_about,
    offer_hub,
    sentence,
    short_lines,
)
from web.words import material_in_words_of_page, summary_of_page, titled_in_words_of_page

DAY = 24 * 3600
MINUTES = "%Y-%m-%dT%H:%M"  # the format in which browsers send times
FURTHEST_START = timedelta(days=366)
MOST_MACHINES = 100_000  # the highest threshold for an alert
MOST_WEIGHT = 1e6


def words_of(run: Run) -> dict[str, str]:
    return {name: getattr(run, name) for name in ("title", "purpose", "visibility", "prompts")}


class WordsForm(forms.Form):
    title = NewRunForm.base_fields["title"]
    purpose = NewRunForm.base_fields["purpose"]
    visibility = NewRunForm.base_fields["visibility"]
    prompts = NewRunForm.base_fields["prompts"]

    def __init__(self, data: Mapping[str, Any] | None = None, *, run: Run) -> None:
        super().__init__(data, initial=words_of(run))
        if not run.parsed_recipe.writes:
            del self.fields["prompts"]

    def clean_visibility(self) -> str:
        return str(self.cleaned_data["visibility"] or self.initial["visibility"])

    def clean_prompts(self) -> str:
        return short_lines(self.cleaned_data["prompts"])


class DraftForm(NewRunForm):
    """The form for a draft, filled in with its current values. The draft keeps its data unless new data is given."""

    wants_text = False
    began_with = gettext_lazy("Current size")

    def __init__(self, *args: Any, run: Run, **kwargs: Any) -> None:
        words = words_of(run)
        stays = kwargs["usual"] == run.parsed_recipe
        super().__init__(
            *args,
            initial={**words, "licence": run.dataset.licence},
            automatic_steps=run.automatic_steps if stays else None,
            **kwargs,
        )
        name = material_in_words_of_page(self.usual.material).name
        self.fields["text"].label = _("New %(material)s") % {"material": name}
        self.fields["text"].help_text += " " + _("Leave empty to keep %(filename)s.") % {
            "filename": run.dataset.filename
        }
        self.fields["may_share"].label = _("I have the right to share the new %(material)s") % {"material": name}


class ExtendForm(forms.Form):
    target_steps = forms.IntegerField(
        min_value=1,
        label=gettext_lazy("Total steps"),
        help_text=gettext_lazy(
            "From the next step on, the learning rate decreases more slowly, ending at the new last step."
        ),
    )


class AnnouncementForm(forms.Form):
    text = forms.CharField(
        max_length=280,
        required=False,
        label=gettext_lazy("Announcement"),
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text=gettext_lazy(
            "Up to 280 characters, shown on the run page, under Activity and in the RSS feed. Leave empty to remove it."
        ),
    )

    def clean_text(self) -> str:
        """Return the text as one line."""
        return " ".join(self.cleaned_data["text"].split())


class StartForm(forms.Form):
    """A form for a run's start time, in UTC. A script lets people read and type it in their own time zone."""

    starts_at = forms.DateTimeField(
        required=False,
        input_formats=[MINUTES],
        label=gettext_lazy("Start time"),
        help_text=gettext_lazy(
            "People can join before then. Leave empty to start as soon as enough machines have joined."
        ),
        widget=forms.DateTimeInput(format=MINUTES, attrs={"type": "datetime-local", "data-local": ""}),
    )

    def clean_starts_at(self) -> datetime | None:
        at: datetime | None = self.cleaned_data["starts_at"]
        if at is not None and not timedelta() < at - timezone.now() < FURTHEST_START:
            raise forms.ValidationError(_("Choose a time in the future, within a year."))
        return at


class GatherForm(forms.Form):
    people = forms.IntegerField(
        min_value=1,
        max_value=MOST_MACHINES,
        required=False,
        label=gettext_lazy("How many people you hope for"),
        help_text=gettext_lazy("The run's page shows how many people are training and how many places are still free."),
    )
    chat = forms.CharField(
        max_length=LONGEST_CHAT_URL,
        required=False,
        label=gettext_lazy("Chat link"),
        help_text=gettext_lazy("Where people meet: Discord, Matrix or another page."),
        validators=[URLValidator(schemes=("https", "http"), message=gettext_lazy("Enter an address with https://."))],
        widget=forms.URLInput(attrs={"placeholder": "https://"}),
    )

    def clean_chat(self) -> str:
        scheme, mark, rest = str(self.cleaned_data["chat"]).partition("://")
        return scheme.lower() + mark + rest


class MemberForm(forms.Form):
    name = forms.CharField(max_length=30, label=gettext_lazy("Username"))


class RequestForm(forms.Form):
    message = forms.CharField(
        max_length=LONGEST_MESSAGE,
        required=False,
        label=gettext_lazy("Message (optional)"),
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text=format_lazy(
            gettext_lazy("Visible to the organizer, co-organizers and moderators. Up to {most} characters."),
            most=LONGEST_MESSAGE,
        ),
    )


class RoleForm(MemberForm):
    """A form for inviting a person, by name, to a role. It offers only roles that the inviter may grant."""

    role = forms.ChoiceField(label=gettext_lazy("Role"))

    def __init__(self, data: Mapping[str, Any] | None = None, *, own: Run.Role | None) -> None:
        super().__init__(data, prefix="role")
        given = [role for role in (Run.Role.MODERATOR, Run.Role.CO_ORGANIZER) if outranks(own, role)]
        self.fields["role"].choices = [(role.value, str(role.label).capitalize()) for role in given]  # type: ignore[attr-defined]


class AlertForm(forms.Form):
    machines = forms.IntegerField(
        min_value=1,
        max_value=MOST_MACHINES,
        required=False,
        label=gettext_lazy("Alert below this many machines"),
        help_text=gettext_lazy(
            "You are always warned when a step takes far too long, the loss jumps, or the model cannot be checked or "
            "published."
        ),
    )


class InvitationForm(forms.Form):
    most_uses = forms.TypedChoiceField(
        choices=[
            ("1", gettext_lazy("one person")),
            ("10", gettext_lazy("10 people")),
            ("100", gettext_lazy("100 people")),
            ("", gettext_lazy("no limit")),
        ],
        coerce=int,
        empty_value=None,
        required=False,
        initial="1",
        label=gettext_lazy("Uses"),
    )
    lifetime = forms.TypedChoiceField(
        choices=[
            (str(DAY), gettext_lazy("a day")),
            (str(7 * DAY), gettext_lazy("a week")),
            (str(30 * DAY), gettext_lazy("30 days")),
            ("", gettext_lazy("until revoked")),
        ],
        coerce=lambda seconds: timedelta(seconds=int(seconds)),
        empty_value=None,
        required=False,
        initial=str(7 * DAY),
        label=gettext_lazy("Lifetime"),
    )


class SourceForm(forms.Form):
    """A form for adding another file to a draft and confirming that it may be shared."""

    text = NewRunForm.base_fields["text"]
    upload = NewRunForm.base_fields["upload"]
    hub = NewRunForm.base_fields["hub"]
    licence = NewRunForm.base_fields["licence"]
    may_share = NewRunForm.base_fields["may_share"]

    def __init__(self, *args: Any, material: Material, releases: Sequence[Release] = (), **kwargs: Any) -> None:
        """Create the form. Instead of a file, people may choose one of `releases`, models from runs on this site."""
        super().__init__(*args, **kwargs)
        material = self.material = material_in_words_of_page(material)
        self.releases = {str(release.pk): release for release in releases}
        if releases:
            self._offer_releases()
        text = self.fields["text"]
        text.label = material.name.capitalize()
        text.help_text = _("%(file)s, up to %(limit)s MB.") % {
            "file": sentence(material.file),
            "limit": f"{settings.UPLOAD_LIMIT_MB:,}",
        }
        text.widget.attrs["accept"] = ",".join((TEXTS if material.or_text else ()) + material.suffixes)
        offer_hub(self, material)
        self.fields["may_share"].label = _("I have the right to share this %(material)s") % {"material": material.name}
        self.fields["may_share"].required = True
        if not material.or_text:
            self.fields["may_share"].help_text = _("Volunteers' machines download it.")

    def _offer_releases(self) -> None:
        named = [(key, _told(release)) for key, release in self.releases.items()]
        self.fields["release"] = forms.ChoiceField(
            choices=[("", _("None of these")), *named],
            required=False,
            label=_("A model trained here"),
            help_text=_("Used as released, under its dataset's licence unless you enter another."),
        )
        self.order_fields(["release"])

    @property
    def material_on_hub(self) -> OnHub:
        """The kind of Hub repository that the form accepts, or "" if the file cannot come from the Hub."""
        return self.material.hub

    @property
    def release(self) -> Release | None:
        return self.releases.get(self.cleaned_data.get("release", ""))

    def clean(self) -> dict[str, Any]:
        """Require exactly one source: a file, an upload in pieces, a Hub repository, or a release."""
        values = super().clean() or self.cleaned_data
        is_brought = brings_one(self, values)
        if self.release is not None and is_brought:
            self.add_error("text", _("Choose a model trained here or upload one, not both."))
        elif self.release is None and not is_brought and "text" not in self.errors:
            self.add_error("text", _("Choose a file or name one on the Hub."))
        needs_licence = is_brought and not values.get("hub")
        if needs_licence and not values.get("licence") and "licence" not in self.errors:
            self.add_error("licence", NO_LICENCE)
        return values

    def blame(self, problem: Problem) -> None:
        self.add_error(field_about(self, problem), titled_in_words_of_page(problem.fault))


def _told(release: Release) -> str:
    run = release.run
    return f"{run.title}, {summary_of_page(run.parsed_recipe)}, {release.created_at:%-d %b %Y}"


class WeightsForm(forms.Form):
    """A form for the weights with which a run mixes its texts: one for each text, or none at all."""

    def __init__(self, *args: Any, lines: Sequence[SourceLine], mix: Sequence[float], **kwargs: Any) -> None:
        """Create the form. `mix` has the current weights, or is empty if the texts are mixed by size."""
        super().__init__(*args, **kwargs)
        for place, line in enumerate(lines):
            self.fields[f"weight_{place}"] = forms.FloatField(
                min_value=0,
                max_value=MOST_WEIGHT,
                required=False,
                initial=mix[place] if mix else None,
                label=line.dataset.filename,
                help_text=_("%(percent)s of all samples now") % {"percent": line.percent},
                widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
            )

    def clean(self) -> dict[str, Any]:
        """Require either a weight for every text or no weights at all."""
        values = super().clean() or self.cleaned_data
        left_out = [name for name in self.fields if values.get(name) is None and name not in self.errors]
        for name in left_out if len(left_out) < len(self.fields) else ():
            self.add_error(name, _("This field is required."))
        return values

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights from a valid form, in the order of the texts; empty if none were given."""
        given = [self.cleaned_data[name] for name in self.fields]
        return () if None in given else tuple(given)
