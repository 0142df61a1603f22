"""Pages on which visitors try a released model: enter a prompt, wait in the queue, read the text."""

from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from runs.access import access_run, person_of
from runs.models import Release, Run, Trial
from runs.releases import trials
from runs.selectors import newest_written
from web.http.rate_limits import limited
from web.http.requester import address_of, run_or_404
from web.words import in_bytes

REFRESH_S = 2


class PromptForm(forms.Form):
    """A form for the prompt that the model continues. Without a prompt, the model begins a text of its own."""

    prompt = forms.CharField(
        required=False,
        strip=False,
        max_length=trials.LONGEST_PROMPT,
        label=gettext_lazy("Prompt"),
        widget=forms.Textarea(attrs={"rows": 2, "dir": "auto", "maxlength": trials.LONGEST_PROMPT}),
        error_messages={
            "max_length": gettext_lazy("At most %(limit_value)d characters; this has %(show_value)d."),
            "null_characters_not_allowed": gettext_lazy("Remove the NUL character from your prompt."),
        },
    )

    def clean_prompt(self) -> str:
        prompt: str = self.cleaned_data["prompt"]
        return prompt.replace("\r\n", "\n")


@never_cache
@limited("texts to write for one address", address_of, own="texts to write")
@require_http_methods(["GET", "HEAD", "POST"])
def try_model(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the form for a trial. A POST adds the prompt to the queue and redirects to the result page."""
    run = run_or_404(access_run, request, slug)
    if trials.release_to_try(run) is None:
        raise Http404
    if request.method != "POST":
        return _page(request, run)
    form = PromptForm(request.POST)
    if not form.is_valid():
        return _page(request, run, form=form, status=400)
    try:
        trial = trials.ask(run=run, asker=_asker(request), prompt=form.cleaned_data["prompt"])
    except trials.NotNow as error:
        return _page(request, run, form=form, not_now=str(error), status=503)
    return redirect("web:trial", slug=slug, trial_id=trial.pk)


@never_cache
@require_safe
def trial_page(request: HttpRequest, slug: str, trial_id: str) -> HttpResponse:
    run = run_or_404(access_run, request, slug)
    trial = get_object_or_404(Trial, run=run, pk=trial_id)
    again = PromptForm(initial={"prompt": trial.prompt})
    facts: dict[str, Any] = {
        "trial": trial,
        "before": trials.before(trial),
        "refresh_s": REFRESH_S if trial.is_waiting else None,
    }
    return _page(request, run, form=again, **facts)


def trial_facts(run: Run, release: Release | None) -> dict[str, Any]:
    """Return the form for a trial, for the run's page. Return an empty dict if visitors may not try the model."""
    is_ready = release is not None and release.state == Release.State.READY
    prompt = next(iter(run.prompt_lines), "")
    return {"trial_form": PromptForm(initial={"prompt": prompt})} if is_ready and trials.is_allowed(run) else {}


def switch_facts(run: Run) -> dict[str, Any]:
    if not trials.may_be_allowed(run):
        return {}
    memory = trials.BYTES_BESIDE + trials.BYTES_EACH * trials.size_of(run)
    return {"trials": {"are_allowed": trials.is_allowed(run), "memory": in_bytes(memory)}}


def _asker(request: HttpRequest) -> str:
    """Return a digest of the user or, without a login, of the visitor's address."""
    person = person_of(request.user)
    return trials.asker_digest(f"person {person.pk}" if person is not None else f"address {address_of(request)}")


def _page(
    request: HttpRequest, run: Run, *, form: PromptForm | None = None, status: int = 200, **more: Any
) -> HttpResponse:
    facts = {
        "run": run,
        "trial_form": form or PromptForm(),
        "beginnings": [line for line in run.prompt_lines if line],
        "written": newest_written(run),
        "can_try": trials.release_to_try(run) is not None,
        **more,
    }
    return render(request, "web/runs/try.html", facts, status=status)
