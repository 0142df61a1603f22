"""Admin pages for runs. The log and the ledger are read-only, because credit is derived from them."""

from collections.abc import Callable
from typing import Any, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Sum
from django.http import HttpRequest
from django.utils.functional import cached_property

from accounts.admin import Kept
from accounts.models import Person
from runs.lifecycle import drafts
from runs.models import Dataset, Head, LedgerEntry, LogEntry, MachineTotal, Release, Run


def pages_of(kept: Callable[[], int]) -> type[Paginator]:  # type: ignore[type-arg] # no parameters at run time
    """Return a paginator class for long tables. It counts rows only in searches; otherwise, it takes `kept()`."""

    class KnownLength(Paginator):  # type: ignore[type-arg]
        @cached_property
        def count(self) -> int:
            rows: Any = self.object_list
            return Paginator(rows, self.per_page).count if rows.query.where else kept()

    return KnownLength


def entries() -> int:
    """Return the number of log entries, summed over the heads of all runs."""
    return int(Head.objects.aggregate(n=Sum("index", default=0))["n"])


def rounds() -> int:
    """Return the number of ledger rows, summed from the machines' totals. There is one row per machine and round."""
    return int(MachineTotal.objects.aggregate(n=Sum("rounds", default=0))["n"])


class ReadOnly(Kept):
    show_full_result_count = False  # avoids counting the rows of a long log

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        del request, obj
        return False


@admin.register(Run)
class RunAdmin(Kept):
    """The admin page for runs. Operators may change the title, purpose and visibility; organizers decide the rest."""

    list_display = ("title", "organizer", "state", "visibility", "created_at", "finished_at")
    list_filter = ("state", "visibility")
    list_select_related = ("organizer",)
    search_fields = ("title", "slug", "organizer__username")
    fields = ("title", "purpose", "visibility", "slug", "organizer", "dataset", "state", "waiting_for", "created_at")
    readonly_fields = ("slug", "organizer", "dataset", "state", "waiting_for", "created_at")

    def save_model(self, request: HttpRequest, obj: Run, form: Any, change: bool) -> None:  # noqa: FBT001  (Django's)
        """Save the changes with the functions that organizers use.

        These also write to the timeline and, if a run becomes members-only, make past contributors members.
        """
        del form, change
        run, operator = Run.objects.get(pk=obj.pk), cast("Person", request.user)
        drafts.change_words(run=run, title=obj.title, purpose=obj.purpose, by=operator, role=Run.Role.OPERATOR)
        visibility = Run.Visibility(obj.visibility)
        drafts.change_visibility(run=run, visibility=visibility, by=operator, role=Run.Role.OPERATOR)


@admin.register(Dataset)
class DatasetAdmin(ReadOnly):
    list_display = ("title", "organizer", "licence", "size", "tokens", "state", "created_at")
    list_filter = ("state",)
    list_select_related = ("organizer",)
    search_fields = ("title", "organizer__username", "sha256")
    fields = ("title", "organizer", "licence", "filename", "size", "sha256", "state", "fault_text", "vocab", "tokens")


@admin.register(LogEntry)
class LogEntryAdmin(ReadOnly):
    paginator = pages_of(entries)

    list_display = ("run", "step", "at", "loss", "samples", "peers", "duration_s", "attempts", "digest")
    list_select_related = ("run",)
    search_fields = ("run__slug", "digest")
    ordering = ("-id",)
    fields = (*list_display, "index", "tokens", "exact", "state_digest")


@admin.register(LedgerEntry)
class LedgerEntryAdmin(ReadOnly):
    paginator = pages_of(rounds)

    list_display = ("run", "step", "person", "machine", "samples", "tokens", "weight", "credit", "reason")
    list_select_related = ("run", "person", "machine")
    search_fields = ("run__slug", "person__username")
    ordering = ("-id",)
    fields = (*list_display, "entry")


@admin.register(Release)
class ReleaseAdmin(ReadOnly):
    list_display = ("run", "state", "created_at", "fault")
    list_select_related = ("run",)
    fields = ("run", "state", "archive", "created_at", "fault")
