"""Notification settings: events and channels. Also the pages that links in e-mails open, which need no login."""

import hashlib
from typing import Any, NamedTuple

from django import forms
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts.models import Person
from notices import mail, outbox, selectors, services
from notices.addresses import Refused
from notices.mail import STOP, bearer
from notices.models import CHOSEN, LONGEST_ADDRESS, OPERATORS_CHOOSE, Event, Mailbox, Notice, Way, Webhook
from notices.words import words_of
from peer_agent.protocol.errors import Problem
from web.http import rate_limits
from web.http.faults import answer
from web.http.rate_limits import TooOften, spend
from web.http.requester import person_in

DONE = {
    "saved": gettext_lazy("Saved."),
    "email": gettext_lazy("An e-mail is on its way to you. Open the link in it within a day."),
    "removed": gettext_lazy("Removed."),
    "on": gettext_lazy("Switched on again."),
    "test": gettext_lazy("A test is on its way and should arrive within seconds. See the result below."),
}
MAIL_ID, HOOK_ID = "mail-%s", "hook-%s"  # ids of fields; two forms on the page have fields of the same name
STATES = {
    Notice.State.WAITING: pgettext_lazy("notice", "on its way"),
    Notice.State.SENT: pgettext_lazy("notice", "sent"),
    Notice.State.FAILED: pgettext_lazy("notice", "not sent"),
}


class AddressForm(forms.Form):
    address = forms.EmailField(
        label=gettext_lazy("E-mail address"),
        max_length=254,
        help_text=gettext_lazy("We will send a link to confirm that it is yours."),
        widget=forms.EmailInput(attrs={"autocomplete": "email"}),
    )


class WebhookForm(forms.Form):
    address = forms.CharField(
        label=gettext_lazy("Address"),
        max_length=LONGEST_ADDRESS,
        help_text=gettext_lazy("The webhook of a Discord or Slack channel, or any https address that accepts JSON."),
        widget=forms.URLInput(attrs={"autocomplete": "off", "placeholder": "https://"}),
    )


class Line(NamedTuple):
    notice: Notice
    headline: str
    way: str
    state: str


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
def notifications(request: HttpRequest) -> HttpResponse:
    """Show the notification settings. A POST stores the chosen events and channels."""
    person = person_in(request)
    if request.method == "POST":
        offered = _offered(selectors.mailbox_of(person), selectors.webhook_of(person))
        pairs = [(event, way) for event in _events_for(person) for way in Way]
        wanted = set(request.POST.getlist("wanted"))
        before = selectors.choices_of(person)
        chosen = [
            (event, way)
            for event, way in pairs
            if (f"{event}-{way}" in wanted if way in offered else (event, way) in before)
        ]
        services.choose(person=person, wanted=chosen)
        return redirect("/account/notifications/?done=saved")
    return _page(request, done=str(DONE.get(request.GET.get("done", ""), "")))


@login_required
@require_POST
def change_address(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    if "remove" in request.POST:
        services.remove_address(person=person)
        return redirect("/account/notifications/?done=removed")
    if not mail.is_offered():
        return _page(request, status=409)
    if "test" in request.POST:
        return _test(request, Way.EMAIL)
    form = AddressForm(request.POST, auto_id=MAIL_ID)
    if not form.is_valid():
        return _page(request, address_form=form, status=400)
    address: str = form.cleaned_data["address"]
    try:
        spend("e-mail addresses", rate_limits.person(request))
        spend("e-mails to one address", hashlib.sha256(address.casefold().encode()).hexdigest())
    except TooOften as problem:
        return rate_limits.refusal(request, problem)
    try:
        services.save_address(person=person, address=address)
    except ValidationError as error:
        form.add_error("address", error)
        return _page(request, address_form=form, status=400)
    return redirect("/account/notifications/?done=email")


@never_cache
@sensitive_post_parameters()
@login_required
@require_POST
def change_webhook(request: HttpRequest) -> HttpResponse:
    person = person_in(request)
    if "remove" in request.POST:
        services.remove_webhook(person=person)
        return redirect("/account/notifications/?done=removed")
    if "on" in request.POST:
        services.switch_on(person=person)
        return redirect("/account/notifications/?done=on")
    if "test" in request.POST:
        return _test(request, Way.WEBHOOK)
    form = WebhookForm(request.POST, auto_id=HOOK_ID)
    if not form.is_valid():
        return _page(request, webhook_form=form, status=400)
    try:
        spend("webhooks", rate_limits.person(request))
        secret = services.save_webhook(person=person, address=form.cleaned_data["address"])
    except TooOften as problem:
        return rate_limits.refusal(request, problem)
    except Refused as error:
        form.add_error("address", str(error))
        return _page(request, webhook_form=form, status=400)
    return _page(request, secret=secret, done=str(DONE["saved"]))


def _test(request: HttpRequest, way: Way) -> HttpResponse:
    try:
        spend("tests of notifications", rate_limits.person(request))
    except TooOften as problem:
        return rate_limits.refusal(request, problem)
    services.send_test(person=person_in(request), way=way)
    return redirect("/account/notifications/?done=test")


@never_cache
@require_safe
def for_browser(request: HttpRequest) -> HttpResponse:
    """Return the notices to show on the user's open pages, as JSON.

    `wanted` is false if the user is not logged in or wants no notices in the browser.
    """
    if not request.user.is_authenticated:
        return JsonResponse({"wanted": False, "notices": []})
    person = person_in(request)
    if Way.BROWSER not in {way for _, way in selectors.choices_of(person)}:
        return JsonResponse({"wanted": False, "notices": []})
    told = [_told(notice) for notice in outbox.for_browser(person.pk, timezone.now())]
    return JsonResponse({"wanted": True, "notices": told})


def _told(notice: Notice) -> dict[str, Any]:
    words = words_of(notice.event, title=notice.title, machine=notice.machine)
    return {"id": notice.pk, "headline": words.headline, "text": words.text, "path": notice.path}


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def confirm_address(request: HttpRequest, token: str) -> HttpResponse:
    """Handle the link that confirms an e-mail address.

    Only a POST confirms it, so the user must press a button: mail scanners open links on their own.
    """
    try:
        mailbox = services.confirmable(token=token)
        if request.method == "POST":
            services.confirm_address(token=token)
    except Problem as problem:
        return answer(request, problem.fault)
    return render(
        request, "web/accounts/confirm_address.html", {"person": mailbox.person, "is_done": request.method == "POST"}
    )


@csrf_exempt  # mail programs may POST here (RFC 8058), and the link is signed
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def stop_mail(request: HttpRequest, token: str) -> HttpResponse:
    """Handle the unsubscribe link in an e-mail. A GET changes nothing; only a POST unsubscribes the address."""
    try:
        if request.method == "POST":
            services.stop_mail(token=token)
        else:
            bearer(token, STOP)
    except Problem as problem:
        return answer(request, problem.fault)
    return render(request, "web/accounts/stop_mail.html", {"is_done": request.method == "POST"})


def _offered(mailbox: Mailbox | None, webhook: Webhook | None) -> list[Way]:
    has_mail = mail.is_offered() and mailbox is not None and mailbox.confirmed_at is not None
    return [Way.BROWSER, *([Way.EMAIL] if has_mail else []), *([Way.WEBHOOK] if webhook is not None else [])]


def _page(
    request: HttpRequest,
    *,
    address_form: AddressForm | None = None,
    webhook_form: WebhookForm | None = None,
    secret: str = "",
    done: str = "",
    status: int = 200,
) -> HttpResponse:
    person = person_in(request)
    mailbox, webhook = selectors.mailbox_of(person), selectors.webhook_of(person)
    ways = _offered(mailbox, webhook)
    facts = {
        "ways": ways,
        "events": _events(person, ways),
        "mailbox": mailbox,
        "sends_mail": mail.is_offered(),
        "webhook": webhook,
        "is_generic": webhook is not None and webhook.service == Webhook.Service.GENERIC,
        "address_form": address_form or AddressForm(auto_id=MAIL_ID),
        "webhook_form": webhook_form or WebhookForm(auto_id=HOOK_ID),
        "secret": secret,
        "lines": [_line(notice) for notice in selectors.recent(person)],
        "done": done,
    }
    return render(request, "web/accounts/notifications.html", facts, status=status)


def _events_for(person: Person) -> tuple[Event, ...]:
    return OPERATORS_CHOOSE if person.is_superuser else CHOSEN


def _events(person: Person, offered: list[Way]) -> list[dict[str, Any]]:
    chosen = selectors.choices_of(person)
    return [
        {
            "label": event.label,
            "ways": [(f"{event}-{way}", way.label, (event, way) in chosen) for way in offered],
        }
        for event in _events_for(person)
    ]


def _line(notice: Notice) -> Line:
    words = words_of(notice.event, title=notice.title, machine=notice.machine)
    state = str(STATES[Notice.State(notice.state)])
    if notice.way == Way.BROWSER:
        state = (
            _("shown while a page was open") if notice.due_at <= timezone.now() else str(STATES[Notice.State.WAITING])
        )
    return Line(notice, words.headline, str(Way(notice.way).label), str(state))
