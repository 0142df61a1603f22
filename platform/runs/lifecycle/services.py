"""What an organizer does to a run. Long work is left to tasks; they are enqueued when the transaction has committed."""

import secrets

from django.db import IntegrityError, transaction
from django.utils.text import slugify

from accounts.models import Person
from notices import outbox
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, checked, encode_recipe
from runs import queue, quotas
from runs.datasets.batches import require_batch, require_data, require_suited
from runs.datasets.services import enqueue_preparation, lacks_base, preparation_of, prepare_anew
from runs.models import Dataset, Head, Release, Run
from runs.queue import TaskName
from runs.states import Why, move
from runs.timeline import add_action, quoted

RESERVED = {"new"}  # /runs/new/ is the form
TITLE_PART = 43  # characters of an address; seventeen more are random
ATTEMPTS = 5
OURS = {"E309", "E327", "E328", "E347", "E397", "E399"}  # faults of the site or of the Hub, not of the text


@transaction.atomic
def create_run(
    *,
    organizer: Person,
    dataset: Dataset,
    title: str,
    purpose: str,
    recipe: Recipe,
    visibility: Run.Visibility = Run.Visibility.PUBLIC,
    automatic_steps: bool = False,
    prompts: str = "",
) -> Run:
    """A draft on a text; its preparation begins at once. Raises Problem E301, E307, E364, E366, E377.

    `automatic_steps`: the recipe's steps are set from the size of the data once that is known.
    """
    checked(recipe)
    quotas.held(organizer)
    quotas.require_draft_left(organizer)
    quotas.require_model(organizer, recipe)
    # A token or an image is at least one byte, so this many samples at the most; the exact count follows later.
    require_batch(recipe, size=dataset.size)
    require_suited(recipe, dataset.filename, dataset.on_hub)
    dataset.preparation = preparation_of(recipe)
    dataset.save(update_fields=["preparation"])
    run = Run(
        title=title,
        purpose=purpose,
        organizer=organizer,
        dataset=dataset,
        recipe=encode_recipe(recipe).decode(),
        visibility=visibility,
        automatic_steps=automatic_steps,
        prompts=prompts,
    )
    save_with_address(run)
    Head.objects.create(run=run)
    add_action(run=run, kind="created", deed=f"created this run from {quoted(dataset.filename)}.")
    enqueue_preparation(dataset)
    return run


@transaction.atomic
def open_run(*, run: Run, by: Person | None = None) -> None:
    """Let people in as soon as the first parameters exist. Does nothing where the run is open or on its way there.

    A text that the site failed to prepare is prepared again. Raises Problem with what is wrong with the text, E307,
    E387, or E366 and E367, since bounds may be lower by now.
    """
    if run.state == Run.State.PAUSED:
        resume_run(run=run, by=by)
    if run.state != Run.State.DRAFT:
        return
    quotas.held(run.organizer)
    quotas.require_run_left(run.organizer)
    quotas.require_model(run.organizer, run.parsed_recipe)
    if lacks_base(run.dataset):
        raise Problem.of("E387")
    if run.dataset.state == Dataset.State.FAILED and run.dataset.fault_code in OURS:
        prepare_anew(run.dataset, run.parsed_recipe)
    if run.dataset.state == Dataset.State.FAILED and run.dataset.fault is not None:
        raise Problem(run.dataset.fault)
    if run.dataset.state == Dataset.State.READY:
        require_data(run.parsed_recipe, run.dataset)
    if move(run, Why.WANTED_OPEN, waiting_for=""):
        add_action(run=run, kind="opened", deed="published the run.", by=by, is_internal=True)
        queue.enqueue_on_commit(TaskName.PREPARE_RUN, run.pk)


@transaction.atomic
def pause_run(*, run: Run, by: Person | None = None) -> None:
    """No further round begins; one that is under way may still commit."""
    if move(run, Why.PAUSED):
        add_action(run=run, kind="paused", deed="paused the run.", by=by)


@transaction.atomic
def resume_run(*, run: Run, by: Person | None = None) -> None:
    """Rounds go on."""
    if move(run, Why.RESUMED):
        add_action(run=run, kind="resumed", deed="resumed the run.", by=by)


@transaction.atomic
def finish_run(*, run: Run, target_steps: int | None = None) -> bool:
    """The last step has a snapshot: have it verified, and make what people download. Saying it twice does it once.

    False, and nothing is done, where the organizer wants another number of steps than `target_steps` by now, or wants
    to go back.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.rollback_index is not None:
        return False
    if target_steps not in (None, now.parsed_recipe.target_steps) and now.wanted != Run.Wanted.FINISHED:
        return False
    move(run, Why.LAST_STEP, waiting_for="")
    outbox.withdraw_all(run.run_id)
    release, _ = Release.objects.get_or_create(run=run)
    if release.state != Release.State.READY:
        queue.enqueue_on_commit(TaskName.MAKE_RELEASE, run.pk)
    return True


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
