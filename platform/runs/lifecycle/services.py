"""What an organizer does to a run. Long work is left to tasks; they are enqueued when the transaction has committed."""

import secrets
import shutil
import uuid
from collections.abc import Iterable
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.text import slugify

from accounts.models import Person
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.recipe import Recipe, checked, encode_recipe
from runs import tasks
from runs.datasets.batches import require_batch, require_text
from runs.datasets.resumable_upload import keep_upload
from runs.datasets.text_upload import too_long, upload_limit, write_text
from runs.lifecycle import quotas
from runs.models import Dataset, Head, Release, Run, Upload
from runs.storage import text_path
from runs.timeline import quoted, tell

RESERVED = {"new"}  # /runs/new/ is the form
TITLE_PART = 43  # characters of an address; seventeen more are random
ATTEMPTS = 5
OURS = {"E309", "E327", "E328"}  # faults of the site, not of the text


def store_upload(
    *, organizer: Person, title: str, licence: str, filename: str, size: int | None, chunks: Iterable[bytes]
) -> Dataset:
    """Keep a text. Raises Problem E311, E303, E304, E365 before the first chunk is read, and E302."""
    if size is None:
        raise Problem.of("E311")
    if size == 0:
        raise Problem.of("E303")
    if size > upload_limit():
        raise Problem(too_long(size, upload_limit()))
    quotas.require_disk(organizer, size)
    dataset = new_dataset(organizer=organizer, title=title, licence=licence, filename=filename, size=size)
    path = text_path(dataset)
    try:
        dataset.sha256 = write_text(chunks, path, size=size)
        with transaction.atomic():
            quotas.held(organizer)
            quotas.require_disk(organizer, size)
            dataset.save(force_insert=True)
    except BaseException:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise
    return dataset


def store_pieces(*, organizer: Person, title: str, licence: str, upload: Upload) -> Dataset:
    """Keep a text that came in pieces. Raises Problem E318."""
    facts = {"title": title, "licence": licence, "filename": upload.filename, "size": upload.size}
    dataset = new_dataset(organizer=organizer, **facts)
    keep_upload(upload=upload, dataset=dataset, target=text_path(dataset))
    return dataset


def new_dataset(*, organizer: Person, **facts: Any) -> Dataset:
    """A row for a text that its organizer says may be shared, not saved yet."""
    facts["filename"] = facts["filename"][-200:]
    dataset = Dataset(id=uuid.uuid4(), organizer=organizer, vouched_by=organizer, vouched_at=timezone.now(), **facts)
    dataset.folder = f"datasets/{dataset.id.hex}"
    return dataset


@transaction.atomic
def create_run(
    *,
    organizer: Person,
    dataset: Dataset,
    title: str,
    purpose: str,
    recipe: Recipe,
    visibility: Run.Visibility = Run.Visibility.PUBLIC,
) -> Run:
    """A draft on a text; its preparation begins at once. Raises Problem E301, E307, E364, E366."""
    checked(recipe)
    quotas.held(organizer)
    quotas.require_draft_left(organizer)
    quotas.require_model(organizer, recipe)
    # A token is at least one byte, so this many samples at the most; the exact count follows the tokenizer.
    require_batch(recipe, tokens=dataset.size)
    dataset.vocab = recipe.vocab
    dataset.save(update_fields=["vocab"])
    run = Run(
        title=title,
        purpose=purpose,
        organizer=organizer,
        dataset=dataset,
        recipe=encode_recipe(recipe).decode(),
        visibility=visibility,
    )
    save_with_address(run)
    Head.objects.create(run=run)
    tell(run=run, kind="created", text=f"{organizer.username} made this run from {quoted(dataset.filename)}.")
    enqueue_preparation(dataset)
    return run


@transaction.atomic
def open_run(*, run: Run) -> None:
    """Let people in as soon as the first parameters exist. Does nothing where the run is open or on its way there.

    A text that the site failed to prepare is prepared again. Raises Problem with what is wrong with the text, E307, or
    E366 and E367, since bounds may be lower by now.
    """
    if run.state == Run.State.PAUSED:
        resume_run(run=run)
    if run.state != Run.State.DRAFT:
        return
    quotas.held(run.organizer)
    quotas.require_run_left(run.organizer)
    quotas.require_model(run.organizer, run.parsed_recipe)
    if run.dataset.state == Dataset.State.FAILED and run.dataset.fault_code in OURS:
        prepare_anew(run.dataset, vocab=run.parsed_recipe.vocab)
    if run.dataset.state == Dataset.State.FAILED:
        raise Problem(Fault(run.dataset.fault_code, run.dataset.fault_text))
    if run.dataset.state == Dataset.State.READY:
        require_text(run.parsed_recipe, run.dataset)
    changed = Run.objects.filter(pk=run.pk, state=Run.State.DRAFT).update(
        state=Run.State.PREPARING, wanted=Run.Wanted.OPEN, waiting_for=""
    )
    run.refresh_from_db()
    if changed:
        transaction.on_commit(lambda: tasks.enqueue(tasks.prepare_run, run.pk))


@transaction.atomic
def pause_run(*, run: Run) -> None:
    """No further round begins; one that is under way may still commit."""
    changed = (
        Run.objects.filter(pk=run.pk, state=Run.State.OPEN)
        .exclude(wanted=Run.Wanted.FINISHED)
        .update(state=Run.State.PAUSED, wanted=Run.Wanted.PAUSED)
    )
    run.refresh_from_db()
    if changed:
        tell(run=run, kind="paused", text=f"{run.organizer.username} paused the run.")


@transaction.atomic
def resume_run(*, run: Run) -> None:
    """Rounds go on."""
    changed = Run.objects.filter(pk=run.pk, state=Run.State.PAUSED).update(state=Run.State.OPEN, wanted=Run.Wanted.OPEN)
    run.refresh_from_db()
    if changed:
        tell(run=run, kind="resumed", text=f"{run.organizer.username} let the run go on.")


@transaction.atomic
def finish_run(*, run: Run, target_steps: int | None = None) -> bool:
    """The last step has a snapshot: have it verified, and make what people download. Saying it twice does it once.

    False, and nothing is done, where the organizer wants another number of steps than `target_steps` by now.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if target_steps not in (None, now.parsed_recipe.target_steps) and now.wanted != Run.Wanted.FINISHED:
        return False
    Run.objects.filter(pk=run.pk).exclude(state=Run.State.FINISHED).update(state=Run.State.FINISHING, waiting_for="")
    release, _ = Release.objects.get_or_create(run=run)
    run.refresh_from_db()
    if release.state != Release.State.READY:
        transaction.on_commit(lambda: tasks.enqueue(tasks.make_release, run.pk))
    return True


def request_verification(*, run: Run) -> None:
    """Have what waits for it replayed from the log, once this transaction has committed."""
    transaction.on_commit(lambda: tasks.enqueue(tasks.verify_snapshots, run.pk))


def request_heldout(*, run: Run) -> None:
    """Have the newest snapshot measured on held-out text, once this transaction has committed."""
    transaction.on_commit(lambda: tasks.enqueue(tasks.measure_heldout, run.pk))


def prepare_anew(dataset: Dataset, *, vocab: int) -> None:
    """Have a text cut again, into another number of pieces or because the site failed."""
    dataset.shards.all().delete()
    dataset.vocab, dataset.state, dataset.fault_code, dataset.fault_text = vocab, Dataset.State.UPLOADED, "", ""
    dataset.save(update_fields=["vocab", "state", "fault_code", "fault_text"])
    enqueue_preparation(dataset)


def request_thinning(*, run: Run) -> None:
    """Have the files of old snapshots removed, once this transaction has committed."""
    transaction.on_commit(lambda: tasks.enqueue(tasks.thin_snapshots, run.pk))


def enqueue_preparation(dataset: Dataset) -> None:
    """Have the text prepared once this transaction has committed."""
    transaction.on_commit(lambda: tasks.enqueue(tasks.prepare_dataset, dataset.pk))


def save_with_address(run: Run) -> None:
    """Save a new run under an address of its own, also where somebody takes the same one at this moment."""
    for attempt in range(ATTEMPTS):
        run.slug = free_slug(run.title, is_secret=run.visibility == Run.Visibility.UNLISTED)
        try:
            with transaction.atomic():
                run.save(force_insert=True)
        except IntegrityError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def free_slug(title: str, *, is_secret: bool = False) -> str:
    """An address made of the title, with four random characters where it is taken or has no Latin letters.

    `is_secret`: with sixteen, so that nobody who knows the title knows the address.
    """
    wanted = slugify(title)[:TITLE_PART].strip("-")
    slug = "" if is_secret else wanted
    while not slug or slug in RESERVED or Run.objects.filter(slug=slug).exists():
        slug = f"{wanted or 'run'}-{secrets.token_hex(8 if is_secret else 2)}"
    return slug
