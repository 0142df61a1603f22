"""Forms of the organizer's pages: words and visibility of a run, a draft, members, roles and invitations."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import forms
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from runs.access import outranks
from runs.models import Run
from runs.models.run import LONGEST_MESSAGE
from web.pages.runs.forms.new_run import NewRunForm, short_lines
from web.words import material_in_words_of_page

DAY = 24 * 3600
MOST_MACHINES = 100_000  # that an alert may ask for


def words_of(run: Run) -> dict[str, str]:
    """What can be changed of a run at any time, as it is."""
    return {name: getattr(run, name) for name in ("title", "purpose", "visibility", "prompts")}


class WordsForm(forms.Form):
    """What can be changed at any time."""

    title = NewRunForm.base_fields["title"]
    purpose = NewRunForm.base_fields["purpose"]
    visibility = NewRunForm.base_fields["visibility"]
    prompts = NewRunForm.base_fields["prompts"]

    def __init__(self, data: Mapping[str, Any] | None = None, *, run: Run) -> None:
        super().__init__(data, initial=words_of(run))
        if not run.parsed_recipe.writes:
            del self.fields["prompts"]

    def clean_prompts(self) -> str:
        """As of a new run."""
        return short_lines(self.cleaned_data["prompts"])


class DraftForm(NewRunForm):
    """A draft again, with everything it has; the text only where it is replaced."""

    wants_text = False

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
        self.fields["text"].label = _("Other %(material)s") % {"material": name}
        self.fields["text"].help_text += " " + _("Leave empty to keep %(filename)s.") % {
            "filename": run.dataset.filename
        }
        self.fields["may_share"].label = _("I have the right to share the other %(material)s") % {"material": name}


class ExtendForm(forms.Form):
    """How many steps the run has from now on, all in all."""

    target_steps = forms.IntegerField(min_value=1, label=gettext_lazy("Total steps"))


class AnnouncementForm(forms.Form):
    """What everybody reads at the top of the run's page."""

    text = forms.CharField(
        max_length=280,
        required=False,
        label=gettext_lazy("Announcement"),
        help_text=gettext_lazy(
            "Up to 280 characters, shown on the run page, in the activity and in its RSS feed. Leave empty to "
            "remove it."
        ),
    )


class MemberForm(forms.Form):
    """Somebody who has a name here."""

    name = forms.CharField(max_length=30, label=gettext_lazy("Username"))


class RequestForm(forms.Form):
    """What somebody says who asks to join."""

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
    """Whom to invite to which role; those alone that whoever asks may give."""

    role = forms.ChoiceField(label=gettext_lazy("Role"))

    def __init__(self, data: Mapping[str, Any] | None = None, *, own: Run.Role | None) -> None:
        super().__init__(data, prefix="role")
        given = [role for role in (Run.Role.MODERATOR, Run.Role.CO_ORGANIZER) if outranks(own, role)]
        self.fields["role"].choices = [(role.value, str(role.label).capitalize()) for role in given]  # type: ignore[attr-defined]


class AlertForm(forms.Form):
    """When those who manage the run are warned."""

    machines = forms.IntegerField(
        min_value=1,
        max_value=MOST_MACHINES,
        required=False,
        label=gettext_lazy("Alert below this many machines"),
    )


class InvitationForm(forms.Form):
    """For how many people a link is good, and for how long."""

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
        label=gettext_lazy("Expires after"),
    )
