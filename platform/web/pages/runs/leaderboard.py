"""Where everybody stands. The feed is the same for all who watch, so a page asks for its reader's own line here."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from runs.access import access_run
from runs.ledger import standings
from web.http import rate_limits
from web.http.access import run_or_404
from web.http.requester import address_of
from web.run_picture import card_sentences
from web.run_picture.own_place import own_words
from web.run_picture.step_bars import tint_of

PAGE = 100  # rows
MOST_PAGES = 1_000_000


@require_safe
def standings_page(request: HttpRequest, slug: str) -> HttpResponse:
    """All people, or all machines, a hundred at a time. Whoever is logged in and not among them has a line."""
    run = run_or_404(access_run, request, slug)
    by_machine = request.GET.get("of") == "machines"
    page = _page_number(request)
    board = standings.machine_board if by_machine else standings.leaderboard
    rows = board(run, offset=(page - 1) * PAGE, limit=PAGE + 1)
    totals = standings.totals(run)
    facts = {
        "run": run,
        "by_machine": by_machine,
        "rows": [{**row._asdict(), "tint": tint_of(row.name)} for row in rows[:PAGE]],
        "given": card_sentences.given(totals.people, totals.machines, totals.samples),
        "nobody": card_sentences.NOBODY,
        "you": own_words(run, request.user, [row.name for row in rows[:PAGE]]),
        "before": page - 1,
        "after": page + 1 if len(rows) > PAGE else 0,
    }
    return render(request, "web/runs/leaderboard.html", facts)


@rate_limits.limited("looks at a run", address_of, methods=("GET",), own="looks of one person")
@require_safe
def own_place(request: HttpRequest, slug: str) -> HttpResponse:
    """The reader's own line of the leaderboard."""
    you = own_words(run_or_404(access_run, request, slug), request.user, ())
    return JsonResponse({"you": you}, headers={"Cache-Control": "private, no-store"})


def _page_number(request: HttpRequest) -> int:
    said = request.GET.get("page", "")
    return min(MOST_PAGES, max(1, int(said))) if said.isascii() and said.isdigit() and len(said) < 9 else 1
