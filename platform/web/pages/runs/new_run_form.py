"""Forms. Bounds and defaults of the recipe are read from the recipe itself; nothing is typed twice."""

from typing import Any, cast

from django import forms
from django.core.validators import MaxValueValidator, MinValueValidator

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import OutOfBounds, Recipe
from runs.models import Run
from web.pages.runs.recipe_fields import DETAILS, FIELDS, RecipeField, recipe_from


class NewRunForm(forms.Form):
    """Everything a run begins with, on one page."""

    title = forms.CharField(max_length=120, help_text="People see it in lists: “A small model of Yoruba proverbs”.")
    purpose = forms.CharField(
        max_length=2000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="Why is it worth other people's electricity? Two sentences are enough.",
    )
    visibility = forms.ChoiceField(
        choices=[
            (Run.Visibility.PUBLIC, "Public: on the list"),
            (Run.Visibility.UNLISTED, "Unlisted: for those who know the address"),
            (Run.Visibility.PRIVATE, "By invitation: for those you let in"),
        ],
        initial=Run.Visibility.PUBLIC,
        label="Who can see it",
    )
    text = forms.FileField(
        required=False, allow_empty_file=True, widget=forms.FileInput(attrs={"accept": ".txt,.md,text/plain"})
    )
    upload = forms.UUIDField(required=False, widget=forms.HiddenInput)  # where the text came in pieces
    licence = forms.CharField(
        max_length=200, help_text="As in “CC BY-SA 4.0” or “public domain”. It goes on the model's card."
    )
    may_share = forms.BooleanField(
        required=False, label="I may share this text", help_text="Every machine that helps gets a copy of parts of it."
    )

    wants_text = True

    def __init__(self, *args: Any, upload_limit_mb: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["text"].help_text = f"One file of UTF-8 text, up to {upload_limit_mb:,} MB."
        for field in FIELDS:
            self.fields[field.name] = form_field(field)

    def clean(self) -> dict[str, Any]:
        """A new text, or the first one, needs the word of who brings it."""
        values = super().clean() or self.cleaned_data
        brings_text = values.get("text") is not None or values.get("upload") is not None
        if self.wants_text and not brings_text and "text" not in self.errors:
            self.add_error("text", "This field is required.")
        if (self.wants_text or brings_text) and not values.get("may_share"):
            self.add_error("may_share", "This field is required.")
        return values

    @property
    def about(self) -> list[forms.BoundField]:
        """The fields that say what the run is."""
        return [self[name] for name in ("title", "purpose", "visibility")]

    @property
    def material(self) -> list[forms.BoundField]:
        """The fields that bring the text."""
        return [self[name] for name in ("text", "licence", "may_share")]

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The recipe's fields under their headings; the last group is for those who know."""
        titles = list(dict.fromkeys(field.group for field in FIELDS))
        return [(title, [self[field.name] for field in FIELDS if field.group == title]) for title in titles]

    @property
    def has_detail_faults(self) -> bool:
        """Whether a field of the folded group needs attention."""
        return any(field.name in self.errors for field in FIELDS if field.group == DETAILS)

    def recipe(self) -> Recipe:
        """The recipe that was filled in. Raises Problem E301 where values do not go together."""
        return recipe_from(self.cleaned_data)

    def blame(self, problem: Problem) -> None:
        """Put a numbered error beside the field it is about."""
        self.add_error(field_of(problem), problem.fault.titled)


def form_field(field: RecipeField) -> forms.Field:
    """The form's field of a recipe's field; out of bounds is E301 with the bounds."""
    facts: dict[str, Any] = {"label": field.label, "help_text": field.help, "initial": field.default, "required": False}
    if field.choices:
        return forms.ChoiceField(choices=[(choice, choice) for choice in field.choices], **facts)
    kind = forms.IntegerField if field.is_whole else forms.FloatField
    made = kind(**facts)
    made.widget.attrs |= {"min": field.least, "max": field.most, "step": "1" if field.is_whole else "any"}
    reason = f"{field.label.lower()} must be from {field.least:,} to {field.most:,}"
    message = Fault.of("E301", reason=reason).titled
    made.validators += [MinValueValidator(field.least, message), MaxValueValidator(field.most, message)]
    return cast("forms.Field", made)


ABOUT = {  # errors that are about one field of the form
    "E366": "width",
    **dict.fromkeys(("E302", "E303", "E304", "E307", "E311", "E317", "E318", "E365"), "text"),
}


def field_of(problem: Problem) -> str | None:
    """The field that a numbered error is about; None for the form as a whole."""
    if isinstance(problem, OutOfBounds):
        return next((field.name for field in FIELDS if ".".join(field.path) == problem.value), None)
    return ABOUT.get(problem.fault.code)
