"""The form for a new run. Its fields' bounds and defaults come from the recipe's types."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import USUAL_OBJECTIVE, Material, OnHub, OutOfBounds, Recipe
from peer_agent.recipes import KINDS
from runs.models import Run
from runs.models.run import LONGEST_PROMPT, MOST_PROMPTS
from runs.storage import MEGABYTE
from web.pages.runs.forms.recipe import (
    CROWD,
    LAPTOPS,
    RecipeField,
    card_facts,
    fields_of,
    help_with,
    recipe_from,
    recipe_in,
    resized,
    shown_estimate,
    steps_in,
    values_of,
    written_values,
)
from web.strokes import bundle, sketch
from web.words import in_bytes, material_in_words_of_page, titled_in_words_of_page

NO_FILE, NO_UPLOAD = gettext_lazy("Choose a file or name a Hub dataset."), gettext_lazy("Choose a file.")
NO_LICENCE, NO_RIGHT = gettext_lazy("Enter the licence."), gettext_lazy("Confirm that you may share it.")

AIMS = {  # what each kind of recipe is for, in a few plain words
    "causal_lm": gettext_lazy("To write"),
    "finetune_lora": gettext_lazy("To write like you"),
    "image_classification": gettext_lazy("To sort pictures"),
    "image_ssl": gettext_lazy("To see without labels"),
    "masked_lm": gettext_lazy("To fill in blanks"),
}
LICENCES = ("CC0-1.0", "CC BY 4.0", "CC BY-SA 4.0", "MIT", "public domain")  # datasets suggested by the form


@dataclass(frozen=True)
class OpenDataset:
    """A well-known dataset on the Hub, which the form suggests. Anyone may use it under its licence."""

    name: str  # as typed into the form's field
    language: str | Promise
    about: str | Promise
    licence: str

    @property
    def address(self) -> str:
        owner, name, *_files = self.name.split("/")
        return f"{settings.HUB_ENDPOINT}/datasets/{owner}/{name}"


STORIES, WIKIPEDIA, WEB = gettext_lazy("short stories"), gettext_lazy("Wikipedia"), gettext_lazy("web pages")
OPEN_DATASETS = (
    OpenDataset("roneneldan/TinyStories/data", gettext_lazy("English"), STORIES, "CDLA-Sharing-1.0"),
    OpenDataset("wikimedia/wikipedia/20231101.simple", gettext_lazy("Simple English"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.bn", gettext_lazy("Bengali"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.hi", gettext_lazy("Hindi"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.sw", gettext_lazy("Swahili"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.es", gettext_lazy("Spanish"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("wikimedia/wikipedia/20231101.ar", gettext_lazy("Arabic"), WIKIPEDIA, "CC BY-SA 3.0"),
    OpenDataset("HuggingFaceFW/fineweb-2/data/ben_Beng/train", gettext_lazy("Bengali"), WEB, "ODC-By"),
    OpenDataset("HuggingFaceFW/fineweb-2/data/swh_Latn/train", gettext_lazy("Swahili"), WEB, "ODC-By"),
    OpenDataset("HuggingFaceFW/fineweb/sample/10BT", gettext_lazy("English"), WEB, "ODC-By"),
)


@dataclass(frozen=True)
class Size:
    """A model size to choose, along with the resources that it needs.

    An empty name stands for the form's initial values.
    """

    name: str
    title: str
    drawing: SafeString | str
    quality: str
    facts: list[str]
    values: str  # values that differ between sizes, as JSON
    is_chosen: bool


class NewRunForm(forms.Form):
    """A one-page form for everything that a new run needs."""

    title = forms.CharField(
        max_length=120,
        label=gettext_lazy("Title"),
        help_text=gettext_lazy("For example “A small model of Yoruba proverbs”."),
        error_messages={"required": gettext_lazy("Give the run a title.")},
    )
    purpose = forms.CharField(
        max_length=2000,
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        label=gettext_lazy("Why are you doing this?"),
        help_text=gettext_lazy(
            "This is what makes people join. It is shown under the title; two sentences are enough."
        ),
    )
    prompts = forms.CharField(
        max_length=MOST_PROMPTS * (LONGEST_PROMPT + 2),
        required=False,
        widget=forms.Textarea(attrs={"rows": 3}),
        label=gettext_lazy("Prompts"),
        help_text=format_lazy(
            gettext_lazy("Up to {number} lines for the model to continue, so people can watch it learn."),
            number=MOST_PROMPTS,
        ),
    )
    visibility = forms.ChoiceField(
        choices=[
            (Run.Visibility.PUBLIC, gettext_lazy("Public: anyone can find and join it")),
            (Run.Visibility.REQUEST, gettext_lazy("Public, join on request")),
            (Run.Visibility.UNLISTED, gettext_lazy("Unlisted: anyone with the link")),
            (Run.Visibility.PRIVATE, gettext_lazy("Private: invited members only")),
        ],
        initial=Run.Visibility.PUBLIC,
        required=False,
        label=gettext_lazy("Who can join"),
    )
    text = forms.FileField(required=False, allow_empty_file=True, widget=forms.FileInput())
    upload = forms.UUIDField(required=False, widget=forms.HiddenInput)  # for data sent in pieces
    hub = forms.CharField(
        max_length=200,
        required=False,
        label=gettext_lazy("Or a dataset on the Hub"),
        help_text=gettext_lazy("For example owner/name. The site downloads it."),
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false", "list": "open-datasets"}
        ),
    )
    licence = forms.CharField(
        max_length=200,
        required=False,
        label=gettext_lazy("Licence"),
        help_text=gettext_lazy("For example “CC BY-SA 4.0” or “public domain”. Shown on the model card."),
        widget=forms.TextInput(attrs={"list": "licences"}),
    )
    may_share = forms.BooleanField(
        required=False,
        help_text=gettext_lazy("Volunteers' machines download parts of it."),
        error_messages={"required": NO_RIGHT},
    )

    wants_text = True
    began_with = gettext_lazy("Default size")  # shown for initial values that match no preset

    def __init__(
        self, *args: Any, usual: Recipe, upload_limit_mb: int, automatic_steps: bool | None = None, **kwargs: Any
    ) -> None:
        """Create the form for one kind of recipe.

        `usual` is a recipe with the fields' initial values; its type determines the fields. With `automatic_steps`, the
        number of steps depends on the size of the data. None means True for the default recipe and False for a preset.
        """
        self.usual, self.kind, self.recipe_fields = usual, type(usual), fields_of(type(usual))
        if automatic_steps is None:
            automatic_steps = usual == type(usual)()
        self.begun = written_values(usual, automatic_steps=automatic_steps)
        if args and args[0]:
            args = (self._of_chosen_size(args[0]), *args[1:])
        super().__init__(*args, **kwargs)
        material = material_in_words_of_page(usual.material)
        text = self.fields["text"]
        text.label, text.help_text = (
            material.name.capitalize(),
            _("%(file)s, up to %(limit)s MB.") % {"file": sentence(material.file), "limit": f"{upload_limit_mb:,}"},
        )
        text.widget.attrs["accept"] = ",".join((TEXTS if material.or_text else ()) + material.suffixes)
        self.fields["may_share"].label = _("I have the right to share the %(material)s") % {"material": material.name}
        offer_hub(self, material)
        if not usual.writes:
            del self.fields["prompts"]
        self.fields["objective"] = forms.CharField(initial=usual.objective, required=False, widget=forms.HiddenInput)
        values = values_of(usual)
        if automatic_steps:
            values["target_steps"] = None
        for field in self.recipe_fields:
            self.fields[field.name] = form_field(field._replace(help=help_with(field, usual)), values[field.name])
        steps = self.fields["target_steps"]
        steps.widget.attrs["placeholder"] = _("automatic")
        steps.help_text = _("Leave empty for about %(passes)s passes over the %(material)s.") % {
            "passes": usual.usual_passes,
            "material": material.name,
        }

    def _values_of_size(self, name: str) -> dict[str, str] | None:
        """Return a size's values as the form shows them, or None if this kind of recipe has no such size."""
        if not name:
            return self.begun
        preset = self.kind.presets.get(name)
        return written_values(preset, automatic_steps=preset == self.kind()) if preset is not None else None

    def _of_chosen_size(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the form's data with the chosen size's values. Values that the user has typed are kept."""
        after = self._values_of_size(data["size"]) if "size" in data else None
        if after is None:
            return data
        before = self._values_of_size(data["shown_size"]) if "shown_size" in data else None
        filled: Any = data.copy()  # type: ignore[attr-defined]
        for name, value in resized(data, before or {}, after).items():
            filled[name] = value
        filled["shown_size"] = data["size"]
        return cast("Mapping[str, Any]", filled)

    def clean_visibility(self) -> str:
        field = self.fields["visibility"]
        return str(self.cleaned_data["visibility"] or self.get_initial_for_field(field, "visibility"))

    def clean_prompts(self) -> str:
        return short_lines(self.cleaned_data["prompts"])

    def clean(self) -> dict[str, Any]:
        """Require data and a licence. For new data, also require confirmation that the user may share it."""
        values = super().clean() or self.cleaned_data
        brings_text = brings_one(self, values)
        if self.wants_text and not brings_text and "text" not in self.errors:
            self.add_error("text", NO_FILE if "hub" in self.fields else NO_UPLOAD)
        # While the form has no data, the data may yet come from the Hub, which would state the licence.
        may_be_on_hub = self.wants_text and not brings_text and "hub" in self.fields
        if not (values.get("licence") or values.get("hub") or may_be_on_hub) and "licence" not in self.errors:
            self.add_error("licence", NO_LICENCE)
        if (self.wants_text or brings_text) and not values.get("may_share"):
            self.add_error("may_share", NO_RIGHT)
        return values

    @property
    def about(self) -> list[forms.BoundField]:
        return [self[name] for name in ("title", "purpose", "visibility")]

    @property
    def material(self) -> list[forms.BoundField]:
        return [self[name] for name in ("text", "hub", "licence", "may_share") if name in self.fields]

    @property
    def material_on_hub(self) -> OnHub:
        """The kind of Hub repository that the form accepts, or "" if the data cannot come from the Hub."""
        return self.usual.material.hub

    @property
    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """The recipe's fields, grouped under their headings. The last group has the advanced settings."""
        fields = self.recipe_fields
        titles = list(dict.fromkeys(field.group for field in fields))
        return [(title, [self[field.name] for field in fields if field.group == title]) for title in titles]

    @property
    def kinds(self) -> list[dict[str, Any]]:
        """Each kind of recipe: its objective, type, aim and drawing, and whether this form is for that kind."""
        return [
            {
                "objective": objective,
                "kind": kind,
                "aim": AIMS.get(objective, ""),
                "drawing": sketch(objective),
                "is_chosen": kind is self.kind,
            }
            for objective, kind in KINDS.items()
        ]

    @property
    def preset(self) -> str:
        """The name of the size that matches the form's initial values, or "" if none does."""
        return next((name for name in self.kind.presets if self._values_of_size(name) == self.begun), "")

    @property
    def size(self) -> str:
        said = str(self.data.get("size", self.preset))
        return said if said in self.kind.presets else ""

    @property
    def sizes(self) -> list[Size]:
        """The sizes to choose from, empty if the kind of recipe has no presets."""
        named: dict[str, Recipe] = dict(self.kind.presets)
        if named and not self.preset:
            named = {"": self.usual, **named}
        values = {name: self._values_of_size(name) or {} for name in named}
        differing = [name for name in self.begun if len({each.get(name) for each in values.values()}) > 1]
        return [
            Size(
                name=preset,
                title=_(preset) if preset else str(self.began_with),
                drawing=bundle(LAPTOPS.get(preset, CROWD)) if named.keys() & LAPTOPS else "",
                values=json.dumps({each: values[preset][each] for each in differing}),
                is_chosen=preset == self.size,
                **card_facts(recipe, preset, is_automatic=not values[preset]["target_steps"]),
            )
            for preset, recipe in named.items()
        ]

    @property
    def expert(self) -> list[forms.BoundField]:
        """The optional fields about the run that few people need."""
        return [self[name] for name in ("prompts",) if name in self.fields]

    @property
    def open_datasets(self) -> tuple[OpenDataset, ...]:
        return OPEN_DATASETS if self.material_on_hub == "dataset" else ()

    @property
    def licences(self) -> tuple[str, ...]:
        return LICENCES

    @property
    def has_recipe_faults(self) -> bool:
        """True if a field in the page's collapsed “Expert” section has an error. The page then opens the section."""
        return any(name in self.errors for name in ("prompts", *(field.name for field in self.recipe_fields)))

    @property
    def automatic_steps(self) -> bool:
        """True if a valid form has no number of steps, so that the site derives it from the size of the data."""
        return self.cleaned_data["target_steps"] is None

    def recipe(self) -> Recipe:
        """Return the recipe from a valid form. Raises Problem E301 if its values do not fit together."""
        given = dict(self.cleaned_data)
        if self.automatic_steps:
            given["target_steps"] = max(self.kind().target_steps, given["warmup_steps"] or 0)
        return recipe_from(self.kind, given)

    @property
    def recipe_names(self) -> str:
        """The names of the fields that affect the estimate, separated by spaces."""
        return " ".join(["objective", "size", *(field.name for field in self.recipe_fields)])

    @property
    def estimate(self) -> dict[str, Any]:
        if not self.is_bound:
            return shown_estimate(self.usual, self.fields["target_steps"].initial, self.size)
        said = {field.name: str(self.data.get(field.name, "")) for field in self.recipe_fields}
        recipe = recipe_in({"objective": self.usual.objective, **said})
        steps = steps_in(said, recipe) if recipe is not None else None
        return shown_estimate(recipe, steps, self.size)

    def _field_of(self, problem: Problem) -> str | None:
        """Return the name of the field that an error is about, or None if it is about the whole form."""
        if isinstance(problem, OutOfBounds):
            found = (field.name for field in self.recipe_fields if ".".join(field.path) == problem.value)
            return next(found, None)
        return field_about(self, problem)

    def blame(self, problem: Problem) -> None:
        self.add_error(self._field_of(problem), titled_in_words_of_page(problem.fault))


def short_lines(text: str) -> str:
    """Return a text's non-empty lines. Raises ValidationError if there are too many or one is too long."""
    lines = [stripped for line in text.splitlines() if (stripped := " ".join(line.split()))]
    if len(lines) > MOST_PROMPTS or any(len(line) > LONGEST_PROMPT for line in lines):
        raise forms.ValidationError(
            _("Up to %(number)s lines of %(length)s characters.") % {"number": MOST_PROMPTS, "length": LONGEST_PROMPT}
        )
    return "\n".join(lines)


def offer_hub(form: forms.Form, material: Material) -> None:
    """Add help to the form's Hub field, or remove the field if this kind of data cannot come from the Hub."""
    if not material.hub:
        del form.fields["hub"]
        return
    licence = form.fields["licence"]
    unless = _("Leave empty to use the licence stated on the Hub.")
    licence.help_text = f"{licence.help_text} {unless}"
    if material.hub == "dataset":
        form.fields["hub"].help_text = _(
            "For example owner/name, or owner/name/folder for a part. The site downloads it. From public "
            "Parquet datasets over %(most)s it takes a sample; machines stream the rest from the Hub."
        ) % {"most": in_bytes(settings.HUB_LIMIT_MB * MEGABYTE)}


def brings_one(form: forms.Form, values: dict[str, Any]) -> bool:
    """Return True if the form has a file or names a Hub repository. If it does both, add an error to the form."""
    brings_file = values.get("text") is not None or values.get("upload") is not None
    if brings_file and values.get("hub"):
        form.add_error("hub", _("Upload a file or name one on the Hub, not both."))
    return brings_file or bool(values.get("hub"))


def field_about(form: forms.Form, problem: Problem) -> str | None:
    """Return the name of the data field that an error is about, or None if it is about the whole form."""
    name = ABOUT.get(problem.fault.code)
    if name == "text" and form.cleaned_data.get("hub"):
        name = "hub"
    return name if name in form.fields else None


def usual_recipe(request: HttpRequest, otherwise: Recipe | None = None) -> Recipe:
    """Return the form's initial recipe: the one named in the request, or else `otherwise`, or else the default."""
    kind = KINDS.get(request.POST.get("objective") or request.GET.get("recipe", ""))
    if kind is None or (otherwise is not None and kind is type(otherwise) and "recipe" not in request.GET):
        return otherwise or KINDS[USUAL_OBJECTIVE]()
    return kind.presets.get(request.GET.get("preset", "")) or kind()


def form_field(field: RecipeField, initial: Any) -> forms.Field:
    """Return the form field for one of a recipe's values. For a value out of bounds, it shows E301 with the bounds."""
    words = {"label": _(field.label), "help_text": _(field.help) if field.help else ""}
    facts: dict[str, Any] = {**words, "initial": initial, "required": False}
    if field.choices:
        return forms.ChoiceField(choices=[(value, _(shown)) for value, shown in field.choices], **facts)
    kind = forms.IntegerField if field.is_whole else forms.FloatField
    made = kind(**facts)
    made.widget.attrs |= {"min": field.least, "max": field.most, "step": "1" if field.is_whole else "any"}
    bounds = {"least": f"{field.least:,}", "most": f"{field.most:,}"}
    reason = _("%(name)s must be between %(least)s and %(most)s") % {"name": str(words["label"]).lower(), **bounds}
    message = titled_in_words_of_page(Fault.of("E301", reason=reason))
    made.validators += [MinValueValidator(field.least, message), MaxValueValidator(field.most, message)]
    return cast("forms.Field", made)


def sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


TEXTS = (".txt", ".md", "text/plain")  # kinds of file that browsers offer when the user chooses a text
ABOUT = {  # errors about a single field of the form
    "E366": "width",
    **dict.fromkeys(("E346", "E347", "E348", "E372", "E388", "E389", "E396", "E397", "E398"), "hub"),
    **dict.fromkeys(("E303", "E304", "E307", "E311", "E317", "E318", "E365", "E377"), "text"),
}
