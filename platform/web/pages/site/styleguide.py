"""The visual language on one page, in debug mode alone: docs/design-language.md says what it is for."""

from django import forms
from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from peer_agent.protocol.errors import Fault
from runs.models import Run

COLOURS = (  # role, and what it is for
    ("paper", "behind everything"),
    ("sheet", "cards, bars, fields' surroundings"),
    ("ink", "text"),
    ("soft", "text beside text, outlines of fields"),
    ("line", "what parts one thing from another"),
    ("accent", "what is alive, or can be done"),
    ("bad", "what is broken"),
)
TYPE = (("figure", "the one figure of a page"), ("large", "titles"), ("text", "text"), ("small", "text beside text"))
SPACES = (4, 8, 16, 24, 32, 64)


class Sample(forms.Form):
    """One field of each kind."""

    title = forms.CharField(help_text="A sentence that helps.")
    kind = forms.ChoiceField(choices=[("one", "One"), ("other", "Other")])
    agreed = forms.BooleanField(label="I agree", help_text="To what this says.")


@require_safe
def styleguide(request: HttpRequest) -> HttpResponse:
    """Every part once. Raises Http404 outside of debug mode."""
    if not settings.DEBUG:
        raise Http404
    facts = {
        "colours": COLOURS,
        "type": TYPE,
        "spaces": SPACES,
        "form": Sample(),
        "wrong": Sample({}),
        "fault": Fault.of("E303"),
        "states": Run.State.choices,
    }
    return render(request, "web/site/styleguide.html", facts)
