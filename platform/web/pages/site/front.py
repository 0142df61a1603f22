"""The front page: what the site is, what is happening now, and the runs. Its upper half is in `showcase`."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, pgettext_lazy
from django.views.decorators.http import require_safe

from coordination import presence
from coordination.presence import RELAY, TRAINER, Crowd, OnlinePeer
from peer_agent.protocol.recipe import KINDS
from runs import selectors
from runs.access import LISTED
from runs.models import Run
from runs.selectors import TYPICAL, Point, typical_loss
from runs.timeline import resumed_at
from web import health
from web.http.requester import site_of
from web.pages.site.showcase import showcase
from web.run_picture import card_sentences
from web.run_picture.image import CARD as PREVIEW
from web.run_picture.picture import Pulse, still_since
from web.run_picture.status_sentence import RUNNING, STUCK, start_label, state_label, training_in, word_of

ON_A_PAGE = 48  # runs per page
FEW = 10  # with fewer runs, the page needs no search
# Titles of the groups of runs, in their order on the page, by the word for the run's state.
OTHERS = gettext_lazy("Paused, preparing, finishing or failed")
GROUPS = {
    "running": gettext_lazy("Training now"),
    "waiting": (WAITING := pgettext_lazy("states of runs", "Waiting")),
    "stuck": WAITING,
    "paused": OTHERS,
    "draft": pgettext_lazy("states of runs", "Drafts"),
    "finished": pgettext_lazy("states of runs", "Finished"),
}
NAMED = 2  # most people to name among those training now
WIDE, HIGH, EDGE = 160, 48, 2  # size of a small curve, and its margin above and below
FROM = re.compile(r"[0-9]{1,9}")
LONGEST = 100  # characters in a search
STATES = (
    ("", gettext_lazy("All states")),
    ("open", pgettext_lazy("states of runs", "Active")),
    ("finished", pgettext_lazy("states of runs", "Finished")),
)


class Card(NamedTuple):
    """A run's row on the front page. `curve` is an SVG path of its losses; `loss_name` says which kind `loss` is.

    `loss_step` is the step at which the held-out loss was measured, or None if that is the current step.
    """

    run: Run
    word: str
    label: str
    progress: str
    loss_name: str
    loss: float | None
    loss_step: int | None
    curve: str
    here: str
    machines: int


@require_safe
def front_page(request: HttpRequest) -> HttpResponse:
    """Show newcomers what the site is, followed by all runs, page by page, starting with those training now."""
    search, begin = _search(request), _begin(request)
    hosted = selectors.hosted_runs(request.user)
    here = presence.online_in(hosted)
    busy = [run for run, peers in here.items() if any(peer.role == TRAINER for peer in peers)]
    found = list(selectors.found_runs(request.user, search, busy=busy)[begin : begin + ON_A_PAGE + 1])
    if begin and not found:
        return redirect("web:runs")
    shown = found[:ON_A_PAGE]
    curves, crowds = selectors.curves(shown), presence.crowds_in(run for run in shown if run.pk in busy)
    cards = [_card(run, curves.get(run.pk, []), here.get(run.pk, []), crowds.get(run.pk, ())) for run in shown]
    is_first = not begin and search == selectors.Search()
    facts = {
        "groups": (groups := _groups(cards)),
        "has_titles": 1 < len(groups) < len(cards),
        "is_first": is_first,
        "has_search": not is_first or len(found) >= min(FEW, ON_A_PAGE),
        "is_new": is_first and not request.user.is_authenticated,
        "search": search,
        "is_searched": search != selectors.Search(),
        "recipes": [(name, _(kind.title)) for name, kind in sorted(KINDS.items())],
        "states": STATES,
        "begin": begin,
        "older": begin + ON_A_PAGE if len(found) > ON_A_PAGE else None,
        "asked": _asked(search),
        "site": site_of(request),
        "address": request.build_absolute_uri("/"),
        "preview": PREVIEW,
    }
    if is_first:
        public = [run for run in hosted if run.visibility in LISTED]
        joinable = [run for run in public if run.visibility == Run.Visibility.PUBLIC and run.state == Run.State.OPEN]
        stuck = {card.run.pk for card in cards if card.word == STUCK}
        facts |= showcase([run for run in joinable if run.pk not in stuck] or joinable, here)
        facts["totals"] = _totals(public, here)
        if request.user.is_superuser:
            facts |= _checks()
    return render(request, "web/site/front.html", facts)


def _search(request: HttpRequest) -> selectors.Search:
    asked = {name: request.GET.get(name, "").replace("\0", "")[:LONGEST] for name in ("q", "recipe", "state")}
    return selectors.Search(
        asked["q"].strip(),
        asked["recipe"] if asked["recipe"] in KINDS else "",
        asked["state"] if asked["state"] in selectors.STATES else "",
    )


def _begin(request: HttpRequest) -> int:
    asked = request.GET.get("from", "")
    return int(asked) if FROM.fullmatch(asked) else 0


def _asked(search: selectors.Search) -> dict[str, str]:
    """Return the search as query parameters, for the link to the next page."""
    named = {"q": search.words, "recipe": search.recipe, "state": search.state}
    return {name: value for name, value in named.items() if value}


def _totals(public: Sequence[Run], here: Mapping[UUID, Sequence[OnlinePeer]]) -> dict[str, Any]:
    """Return totals over all runs that everyone may see, and how many people and machines are online in them.

    Relays are not counted.
    """
    members = [peer for run in public for peer in here.get(run.pk, ()) if peer.role != RELAY]
    given = selectors.public_totals()
    here_now = {"people": len({peer.name for peer in members}), "machines": len({peer.peer for peer in members})}
    return {
        "samples": given.samples,
        "people": given.people,
        "today": selectors.samples_today(None, timezone.now()),
        "online": card_sentences.given_by(**here_now) if members else "",
    }


def _checks() -> dict[str, Any]:
    """Return the results of the site's checks for the card that only operators see."""
    checked = health.look(health.CHECKS)
    return {
        "checked": checked,
        "open_checks": [each for each in checked if each.finding.needs_someone],
        "is_checking": any(each.finding.state == health.State.PENDING for each in checked),
    }


def _card(run: Any, curve: Sequence[Point], peers: Sequence[OnlinePeer], crowd: Sequence[Crowd]) -> Card:
    """Return the card for a run returned by `selectors.found_runs`."""
    trainers = training_in(run, peers)
    word = word_of(run, run.dataset, trainers, release=getattr(run, "release", None))
    step, target = run.head.step, run.parsed_recipe.target_steps
    pulse = Pulse(curve, selectors.curve_pace(curve), crowd, partial(resumed_at, run))
    if word == RUNNING and step < target and still_since(run, pulse, timezone.now()):
        word = STUCK
    heldout: float | None = run.heldout_loss
    newest = [point for point in curve if point.step > run.head.step - TYPICAL]  # older points are thinned
    return Card(
        run=run,
        word=word,
        label=start_label(run) or state_label(word, trainers),
        progress=card_sentences.step_of(run, step, target),
        loss_name=_("Training loss") if heldout is None else _("Held-out loss"),
        loss=typical_loss(newest) if heldout is None else heldout,
        loss_step=run.heldout_step if run.heldout_step != step else None,
        curve=small_curve(curve, card_sentences.last_step(run, step, target)),
        here=_here(trainers) if word != STUCK else "",
        machines=len(trainers),
    )


def _here(trainers: Sequence[OnlinePeer]) -> str:
    """Return text such as “Teo, Ida and 3 others”, or "" if no one is training."""
    names = list(dict.fromkeys(peer.name for peer in trainers))
    if not names:
        return ""
    if len(names) > NAMED + 1:
        others = len(names) - NAMED
        message = ngettext("%(names)s and %(number)s other", "%(names)s and %(number)s others", others)
        return message % {"names": _(", ").join(names[:NAMED]), "number": others}
    if len(names) == 1:
        return names[0]
    return _("%(names)s and %(last)s") % {"names": _(", ").join(names[:-1]), "last": names[-1]}


def _groups(cards: Sequence[Card]) -> list[tuple[str, list[Card]]]:
    """Return the cards by state, under the group's title. Stuck runs are last in theirs. No group is empty."""
    grouped: dict[str, list[Card]] = {str(title): [] for title in GROUPS.values()}
    for card in sorted(cards, key=lambda card: (card.word == STUCK, -card.machines)):
        grouped[str(GROUPS.get(card.word, OTHERS))].append(card)
    return [(title, found) for title, found in grouped.items() if found]


def small_curve(points: Sequence[Point], last_step: int) -> str:
    """Return an SVG path in a `WIDE` x `HIGH` box, scaled to the losses, or "" for fewer than two points.

    The box's width stands for the whole run. Until half of the run is done, it stands for twice the steps made so far.
    """
    finite = [point for point in points if math.isfinite(point.loss)]
    if len(finite) < 2:
        return ""
    losses = [point.loss for point in finite]
    low, spread = min(losses), (max(losses) - min(losses)) or 1.0
    first = finite[0].step
    whole = max(min(last_step, 2 * finite[-1].step) - first, 1)
    places = (
        f"{WIDE * (point.step - first) / whole:.1f} {EDGE + (HIGH - 2 * EDGE) * (1 - (point.loss - low) / spread):.1f}"
        for point in finite
    )
    return "M" + "L".join(places)
