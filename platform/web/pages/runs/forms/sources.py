"""Forms for the texts that a run mixes: one more, and the weights of all."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.conf import settings
from django.utils.translation import gettext as _

from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Material, OnHub
from runs.datasets.services import SourceLine
from runs.models import Release
from web.pages.runs.forms.new_run import (
    NO_LICENCE,
    TEXTS,
    NewRunForm,
    brings_one,
    field_about,
    offer_hub,
    sentence,
)
from web.words import material_in_words_of_page, summary_of_page, titled_in_words_of_page

MOST_WEIGHT = 1e6


class SourceForm(forms.Form):
    """One more text, and whose word it is that it may be shared."""

    text = NewRunForm.base_fields["text"]
    upload = NewRunForm.base_fields["upload"]
    hub = NewRunForm.base_fields["hub"]
    licence = NewRunForm.base_fields["licence"]
    may_share = NewRunForm.base_fields["may_share"]

    def __init__(self, *args: Any, material: Material, releases: Sequence[Release] = (), **kwargs: Any) -> None:
        """`releases`: of runs here, of which one may be taken instead of a file."""
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
            help_text=_("Used as released, under its dataset's licence unless you give another."),
        )
        self.order_fields(["release"])

    @property
    def material_on_hub(self) -> OnHub:
        """What the Hub has it as, empty where it is not taken from there."""
        return self.material.hub

    @property
    def release(self) -> Release | None:
        """What a valid form takes instead of a file."""
        return self.releases.get(self.cleaned_data.get("release", ""))

    def clean(self) -> dict[str, Any]:
        """It needs one thing: a file, in the form or in pieces before it, a name on the Hub, or a release."""
        values = super().clean() or self.cleaned_data
        is_brought = brings_one(self, values)
        if self.release is not None and is_brought:
            self.add_error("text", _("Choose a model trained here or upload one, not both."))
        elif self.release is None and not is_brought and "text" not in self.errors:
            self.add_error("text", _("Choose a file or name it on the Hub."))
        needs_licence = self.release is None and not values.get("hub")
        if needs_licence and not values.get("licence") and "licence" not in self.errors:
            self.add_error("licence", NO_LICENCE)
        return values

    def blame(self, problem: Problem) -> None:
        """Put a numbered error beside the field it is about."""
        self.add_error(field_about(self, problem), titled_in_words_of_page(problem.fault))


def _told(release: Release) -> str:
    """A model as it is chosen."""
    run = release.run
    return f"{run.title}, {summary_of_page(run.parsed_recipe)}, {release.created_at:%-d %b %Y}"


class WeightsForm(forms.Form):
    """A weight for each text, or none at all."""

    def __init__(self, *args: Any, lines: Sequence[SourceLine], mix: Sequence[float], **kwargs: Any) -> None:
        """`mix`: the weights as they are, empty where each text is taken by its size."""
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
        """All or none."""
        values = super().clean() or self.cleaned_data
        left_out = [name for name in self.fields if values.get(name) is None and name not in self.errors]
        for name in left_out if len(left_out) < len(self.fields) else ():
            self.add_error(name, _("This field is required."))
        return values

    @property
    def weights(self) -> tuple[float, ...]:
        """Of a valid form, in the order of the texts; empty where none was given."""
        given = [self.cleaned_data[name] for name in self.fields]
        return () if None in given else tuple(given)
