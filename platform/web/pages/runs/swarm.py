"""The page of a run's online machines: their work and connections, and how long recent rounds took.

Everyone sees those facts about a machine that the leaderboard and the plan also show. Only its owner and the run's
managers see its bandwidth.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from statistics import median
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_safe

from accounts.models import Machine, Person
from accounts.selectors import names_with_page
from coordination import presence
from coordination.presence import AUXILIARY, TRAINER, Link, OnlinePeer
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import PeerId
from runs.access import MANAGING, access_run, person_of, role_of
from runs.ledger.records import last_head
from runs.ledger.totals import parts_averaged
from runs.models import IN_MODEL, Run
from runs.states import MOVING
from runs.timeline import activity_of
from web import strokes
from web.http.parts import part_of
from web.http.requester import run_or_404
from web.run_picture import card_sentences, counts
from web.run_picture.averaging import RELAY
from web.run_picture.own import in_words

REFRESH_S = 15
ROUNDS = 20  # steps whose durations are shown
SINCE, MOST = timedelta(days=1), 1_000  # reasons are counted over this period, in at most this many lines
ROLES = {
    TRAINER: gettext_lazy("trains"),
    AUXILIARY: gettext_lazy("averages"),
    presence.RELAY: gettext_lazy("averages and forwards"),
}
WAYS = {
    "direct": gettext_lazy("direct"),
    "partly": gettext_lazy("partly direct"),
    "relayed": gettext_lazy("relayed"),
}
NOT_IN_A_STEP = (  # kind of line, part of its text, and the reason as text
    ("returned", "too old", gettext_lazy("Gradients were too old")),
    ("returned", "older model", gettext_lazy("Computed on an older model")),
    ("returned", "too slow", gettext_lazy("Too slow, so skipped")),
    ("returned", "not leased", gettext_lazy("Reported work it was not assigned")),
    ("returned", "leases had ended", gettext_lazy("Returned after its lease expired")),
    ("returned", "lost machine", gettext_lazy("The machine was lost")),
    ("returned", "was refused", gettext_lazy("A part was damaged")),
    ("returned", "", gettext_lazy("Did not fit the step")),
    ("dropped", "damaged gradient", gettext_lazy("A part was damaged")),
    ("dropped", "stopped sending", gettext_lazy("Stopped sending")),
    ("dropped", "was late", gettext_lazy("Arrived too late")),
    ("dropped", "was lost", gettext_lazy("The machine was lost")),
    ("dropped", "", gettext_lazy("Left out of a step")),
    ("late", "", gettext_lazy("A part arrived late and counted in the next step")),
    ("non-finite", "", gettext_lazy("Gradient was not a finite number")),
    ("refused", "span", gettext_lazy("Averaged a part that did not fit the plan")),
)


@require_safe
def swarm_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the online machines (a hundred per page), the last rounds, and the reasons why work was left out."""
    run = run_or_404(access_run, request, slug)
    here = presence.here(run, with_links=request.user.is_authenticated)
    shown, (averaged_step, parts) = part_of(here.peers, request, "machines", ""), _averaged(run)
    asking = Asking(run, person_of(request.user), role_of(run, request.user) in MANAGING)
    is_paused = run.state == Run.State.PAUSED
    rows = _rows(asking, shown.rows, here.links, parts)
    facts = {
        "run": run,
        "sentence": online_sentence(here.peers, is_paused=is_paused),
        "rows": rows,
        "with_page": names_with_page({row["person"] for row in rows}),
        "averages": sum(bool(row["part"]) for row in rows) > 1,
        "measured": any(row["up"] for row in rows),
        "rest": _rest(here.peers, parts),
        "averaged_step": averaged_step,
        "rounds": rounds_of(run),
        "reasons": reasons_of(run),
        "refresh_s": REFRESH_S if run.state in MOVING else None,
        "part": shown,
    }
    return render(request, "web/runs/swarm.html", facts)


def online_sentence(peers: Sequence[OnlinePeer], *, is_paused: bool = False) -> str:
    """Return a sentence such as “12 people on 18 machines and 1 relay are online: 17 train, 1 only averages.”

    While the run is paused, trainers stay connected and wait.
    """
    members = [peer for peer in peers if peer.role in {TRAINER, AUXILIARY}]
    if not peers:
        return _("No machines are online right now.")
    roles = Counter(peer.role for peer in peers)
    trainers, averagers, relays = roles[TRAINER], roles[AUXILIARY], len(peers) - len(members)
    train = ngettext("%(number)s trains", "%(number)s train", trainers)
    wait = ngettext("%(number)s waits until the run resumes", "%(number)s wait until the run resumes", trainers)
    forward = counts.with_number(ngettext("%(number)s relay", "%(number)s relays", relays), relays)
    if not members:
        return f"{_('Only the site is online')}: {forward}."
    told = [
        counts.with_number(wait if is_paused else train, trainers) if trainers else "",
        counts.with_number(ngettext("%(number)s only averages", "%(number)s only average", averagers), averagers)
        if averagers
        else "",
    ]
    people = len({peer.name for peer in members})
    who = ngettext("%(people)s on %(machines)s is online", "%(people)s on %(machines)s are online", people)
    if relays:
        who = _("%(people)s on %(machines)s and %(relays)s are online")
    who %= {"people": counts.people(people), "machines": counts.machines(len(members)), "relays": forward}
    return f"{who}: {', '.join(filter(None, told))}."


# --- Machines


class Asking(NamedTuple):
    """The reader of the page. With `manages`, they may see the names and connections of all machines."""

    run: Run
    person: Person | None
    manages: bool


class Known(NamedTuple):
    """Facts about a machine that decide what its row shows. `is_public`: the leaderboard or the plan also names it."""

    name: str
    is_relay: bool
    is_own: bool
    is_public: bool


def _rows(
    asking: Asking, peers: Sequence[OnlinePeer], stored: Mapping[str, Any], parts: Mapping[PeerId, float]
) -> list[dict[str, Any]]:
    known = _known(asking, [peer.peer for peer in peers])
    seen = {peer for peer, each in known.items() if asking.manages or each.is_own}
    links = presence.links_in({peer: link for peer, link in stored.items() if peer in seen})
    return [
        _row(asking.run, peer, _name(asking, known[peer.peer]) if peer.peer in known else "")
        | _link_words(links.get(PeerId(peer.peer)))
        | {"part": card_sentences.percent(parts.get(PeerId(peer.peer), 0.0))}
        | {"is_own": peer.peer in known and known[peer.peer].is_own}
        for peer in peers
    ]


def _row(run: Run, peer: OnlinePeer, machine: str) -> dict[str, Any]:
    waits = run.state == Run.State.PAUSED and peer.role == TRAINER
    return {
        "person": RELAY if peer.role == presence.RELAY else peer.name,
        "is_relay": peer.role == presence.RELAY,
        "machine": machine,
        "role": _("waits") if waits else ROLES.get(peer.role, peer.role),
        "way": WAYS.get(peer.way, ""),
        "now": _("catching up") if peer.state == "syncing" else "",
    }


def _link_words(link: Link | None) -> dict[str, str]:
    """Return a link's speeds as text, or "" if the reader may not see them."""
    return {"up": in_words(link.up), "down": in_words(link.down)} if link else {"up": "", "down": ""}


def _name(asking: Asking, machine: Known) -> str:
    """Return the machine's name, or "" if it is hidden from the reader.

    A relay's name may be that of one of the site's computers, so only the relay's owner sees it.
    """
    if machine.is_relay:
        return machine.name if machine.is_own else ""
    return machine.name if machine.is_own or asking.manages or machine.is_public else ""


def _known(asking: Asking, peers: Collection[str]) -> dict[str, Known]:
    """Return facts about the machines, by peer, in one query. A machine that has contributed nothing is not public."""
    own = {"run": asking.run, "machine": OuterRef("pk")}
    totals, averaged = asking.run.totals.model.objects, asking.run.averaged.model.objects
    machines = Machine.objects.filter(pk__in=[UUID(peer) for peer in peers]).annotate(
        is_public=Exists(totals.filter(**own)) | Exists(averaged.filter(**own))
    )
    mine = asking.person.pk if asking.person else None
    return {
        each.peer_id: Known(each.name, each.kind == Machine.Kind.RELAY, each.person_id == mine, each.is_public)
        for each in machines
    }


def _averaged(run: Run) -> tuple[int, Mapping[PeerId, float]]:
    """Return the last step, and the fraction of its gradient that each reducer averaged.

    Return (0, {}) before the first step, or if the step's records cannot be read.
    """
    try:
        head = last_head(run)
    except Problem:  # unreadable records are reported by the audit
        return 0, {}
    return (head.step, parts_averaged(head)) if head and head.spans else (0, {})


def _rest(peers: Sequence[OnlinePeer], parts: Mapping[PeerId, float]) -> str:
    """Return the percentage of the last step that was averaged by machines that are no longer online, as text."""
    here = {peer.peer for peer in peers}
    return card_sentences.percent(sum(part for peer, part in parts.items() if peer not in here)) if peers else ""


# --- Rounds


def rounds_of(run: Run) -> dict[str, Any] | None:
    """Return the durations of the last steps, oldest first, with a summary, or None before the first step."""
    newest = list(run.log.filter(IN_MODEL).order_by("-index").values_list("step", "duration_s", "attempts")[:ROUNDS])[
        ::-1
    ]
    if not newest:
        return None
    times = [seconds for _, seconds, _ in newest]
    middle, longest = median(times), max(times)
    again = sum(attempts > 1 for _, _, attempts in newest)
    facts = {"median": counts.duration(middle), "longest": counts.duration(longest)}
    label = ngettext(
        "Times of the last %(number)s step: median %(median)s, longest %(longest)s",
        "Times of the last %(number)s steps: median %(median)s, longest %(longest)s",
        len(newest),
    )
    return {
        **facts,
        "steps": len(newest),
        "first": newest[0][0],
        "last": newest[-1][0],
        "longest_step": newest[times.index(longest)][0],
        "again": counts.steps(again) if again else "",
        "drawn": strokes.times(times, middle, label % {**facts, "number": len(newest)}),
    }


def reasons_of(run: Run) -> list[tuple[str, int]]:
    """Return the reasons why work was left out of steps in the last day, with counts, most frequent first."""
    kinds = {kind for kind, _, _ in NOT_IN_A_STEP}
    lines = activity_of(run).filter(kind__in=kinds, at__gte=timezone.now() - SINCE).order_by("-at", "-id")
    found = Counter(reason_of(kind, text) for kind, text in lines.values_list("kind", "text")[:MOST])
    return [(reason, count) for reason, count in found.most_common() if reason]


def reason_of(kind: str, text: str) -> str:
    """Return the reason behind a timeline line as text, or "" if the line is not about a machine's work."""
    return next((str(words) for of, part, words in NOT_IN_A_STEP if of == kind and part in text), "")
