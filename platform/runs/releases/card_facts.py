"""The facts on a model card, read from a run's log and ledger, and the people whom the card names."""

from collections.abc import Sequence
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet, Sum
from django.utils.translation import gettext as _
from django.utils.translation import override

from accounts.models import Person as Account
from jobs import queue
from jobs.queue import Kind
from peer_agent.publishing.card import CardFacts, Person, unfinished
from runs.datasets.services import percent, shares_used, source_lines
from runs.models import IN_MODEL, Dataset, LedgerEntry, MachineTotal, NamedVolunteer, Release, Run, Snapshot
from runs.selectors import LONG, TYPICAL, Measured, Point, heldout_points, loss_points, overfitting, typical_loss

REMAKE_S = 20  # delay in seconds, so that a quick change of mind causes no work


def release_facts(run: Run, snapshot: Snapshot) -> CardFacts:
    """Return the card's facts about a snapshot, with its digests.

    The facts count the work up to the snapshot's step. For the run's latest snapshot, they count all work.
    """
    is_newest = not run.snapshots.filter(index__gt=snapshot.index).exists()
    known = _with_digests(facts_at(run, run.head.step if is_newest else snapshot.step), run, snapshot)
    return msgspec.structs.replace(known, **_later_facts(run, snapshot))


def checkpoint_facts(run: Run, snapshot: Snapshot) -> CardFacts:
    """Return the card's facts about a snapshot of an unfinished run, counting the work up to its step."""
    return unfinished(_with_digests(facts_at(run, snapshot.step), run, snapshot))


def _with_digests(known: CardFacts, run: Run, snapshot: Snapshot) -> CardFacts:
    measured = [point for point in heldout_points(run) if point.place <= snapshot.index]
    with override("en"):  # a card has the same language for all readers
        checked = how_checked()
    return msgspec.structs.replace(
        known,
        steps=snapshot.step,
        **_heldout_facts(run, measured),
        state_digest=snapshot.state_digest,
        log_digest=snapshot.digest,
        snapshot=snapshot.file,
        checked=checked,
    )


def how_checked() -> str:
    """Return the sentence saying how the site checked the released model against the log."""
    return _(
        "Before this release the site replayed the whole log from the first step and arrived at exactly this model."
    )


def facts_at(run: Run, step: int) -> CardFacts:
    """Return the card's facts about the model after a step, without digests. Name only people who agreed to it."""
    people = people_of(run, step)
    agreed = set(NamedVolunteer.objects.filter(run=run).values_list("person__username", flat=True))
    named = tuple(person for person in people if person.name in agreed)
    others = [person for person in people if person.name not in agreed]
    totals = _given(run, step).aggregate(samples=Sum("samples", default=0), tokens=Sum("tokens", default=0))
    measured = [point for point in heldout_points(run) if point.step <= step]
    newest = run.log.filter(IN_MODEL, step__lte=step).order_by("-index").values_list("step", "loss")[:TYPICAL]
    points = [point for point in loss_points(run, most=LONG) if point.step <= step]
    return CardFacts(
        slug=run.slug,
        title=run.title,
        purpose=run.purpose,
        address=f"{settings.PUBLIC_URL}/runs/{run.slug}/",
        steps=step,
        loss=typical_loss([Point(*row) for row in newest]) or 0.0,
        **_heldout_facts(run, measured),
        is_overfitting=overfitting(points, measured) is not None,
        unigram_entropy=run.dataset.unigram_entropy,
        samples=totals["samples"],
        tokens=totals["tokens"],
        people=named,
        unnamed=len(others),
        unnamed_share=sum(person.share for person in others),
        unnamed_samples=sum(person.samples for person in others),
        points=tuple((point.step, point.loss) for point in points),
        **_data_facts(run),
    )


def _data_facts(run: Run) -> dict[str, Any]:
    """Return the data's title and license, and the people who vouched for it.

    For several texts, the title gives each text's share of the samples, and the license lists theirs.
    """
    lines = source_lines(run)
    texts = [line.dataset for line in lines]
    vouchers = dict.fromkeys(filter(None, map(vouched, texts)))
    licences = dict.fromkeys(text.licence for text in texts)
    if len(lines) == 1:
        title, licence = texts[0].filename, texts[0].licence
    else:
        used = [percent(share) for share in shares_used(run, len(lines))]
        title = ", ".join(f"{text.filename} ({part} of the samples)" for text, part in zip(texts, used, strict=True))
        of_each = "; ".join(f"{text.licence} ({text.filename})" for text in texts)
        licence = next(iter(licences)) if len(licences) == 1 else of_each
    if (base := run.dataset.base) is not None:
        what = "adapted" if run.parsed_recipe.material.adapts is not None else "tokenizer"
        title, licence = f"{title}; {what}: {base.filename}", f"{licence}; {base.licence} ({base.filename})"
    return {"data_title": title, "data_licence": licence, "data_vouched": "; ".join(vouchers)}


def _heldout_facts(run: Run, measured: Sequence[Measured]) -> dict[str, Any]:
    """Return the held-out figures of the latest measured snapshot, and the lowest held-out loss so far."""
    if not measured:
        return {}
    newest, best = measured[-1], min(measured, key=lambda point: point.loss)
    figures = run.snapshots.get(index=newest.place).heldout_figures
    of_best = {"best_heldout_loss": best.loss, "best_heldout_step": best.step}
    return {"heldout_loss": newest.loss, "heldout_step": newest.step, "heldout_figures": figures, **of_best}


def _later_facts(run: Run, snapshot: Snapshot) -> dict[str, Any]:
    """Return the run's latest held-out loss and its step. Return {} unless the run has overfitted since `snapshot`."""
    found = overfitting(loss_points(run), heldout_points(run))
    if found is None or found.best.place != snapshot.index:
        return {}
    return {"later_heldout_loss": found.newest.loss, "later_heldout_step": found.newest.step}


def _given(run: Run, step: int) -> QuerySet[LedgerEntry] | QuerySet[MachineTotal]:
    """Return rows that count the work up to a step.

    These are the rows of totals or, if the totals already include later steps, the ledger's rows.
    """
    is_past = step < run.head.step and run.totals.filter(last_step__gt=step).exists()
    return run.ledger.filter(step__lte=step) if is_past else run.totals.all()


def vouched(dataset: Dataset) -> str:
    """Return the name of the person who confirmed that the data may be shared, and the date.

    Return an empty string if no confirmation is stored.
    """
    if dataset.vouched_by is None or dataset.vouched_at is None:
        return ""
    return f"{dataset.vouched_by.username}, {dataset.vouched_at:%Y-%m-%d}"


def is_card_stale(release: Release) -> bool:
    """Return True if a contributor has agreed to be named, or withdrawn consent, since the card was made."""
    run = release.run
    is_older = release.index is not None and run.snapshots.filter(index__gt=release.index).exists()
    given = _given(run, release.step if is_older and release.step is not None else run.head.step)
    agreed = NamedVolunteer.objects.filter(run=run, person__in=given.order_by().values_list("person", flat=True))
    return set(agreed.values_list("person__username", flat=True)) != set(release.named)


def people_of(run: Run, step: int) -> tuple[Person, ...]:
    """Return everyone who contributed up to a step, with their shares of the tokens, largest share first."""
    rows = (
        _given(run, step)
        .values_list("person__username")
        .annotate(tokens=Sum("tokens"), samples=Sum("samples"))
        .order_by("-tokens", "person__username")
    )
    whole = max(sum(tokens for _, tokens, _ in rows), 1)
    return tuple(Person(name=name, share=tokens / whole, samples=samples) for name, tokens, samples in rows)


@transaction.atomic
def set_named(*, run: Run, person: Account, agreed: bool) -> None:
    """Store or withdraw the person's consent to be named on the card, and have the card remade if necessary."""
    if agreed:
        NamedVolunteer.objects.get_or_create(run=run, person=person)
    else:
        NamedVolunteer.objects.filter(run=run, person=person).delete()
    if has_given(run, person) and Release.objects.filter(run=run, state=Release.State.READY).exists():
        queue.put(Kind.REMAKE_RELEASE, run.pk, after_s=REMAKE_S)


def has_given(run: Run, person: Account) -> bool:
    return run.totals.filter(person=person).exists()
