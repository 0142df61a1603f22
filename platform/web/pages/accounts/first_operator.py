"""The one-time page on which the first operator takes charge of a new site."""

import secrets
from pathlib import Path

from django.conf import settings
from django.contrib.auth import login
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from accounts import services
from accounts.selectors import has_operator
from config.environment import kept_secret
from web.pages.accounts.forms import SignUpForm


def operator_secret() -> str:
    """What the link of the first operator ends in; `serve` prints it while it works."""
    return kept_secret(Path(settings.DATA) / "keys" / "operator").hex()


@require_http_methods(["GET", "POST"])
def first_operator(request: HttpRequest, secret: str) -> HttpResponse:
    """Name and password of the first superuser; afterwards the link is dead."""
    if has_operator() or not secrets.compare_digest(secret.encode(), operator_secret().encode()):
        raise Http404
    form = SignUpForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            person = services.make_first_operator(**form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, error)
        else:
            login(request, person)
            return redirect("web:runs")
    return render(request, "web/accounts/first_operator.html", {"form": form})
