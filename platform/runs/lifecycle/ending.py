"""How long a run is: made longer, or ended where it is.

Peers hold the recipe they were greeted with, but nothing they do depends on its number of steps: the learning rate of
each update is in its record. So a live run may be made longer; its host tells the coordinator within a second.
"""

import msgspec
from django.db import transaction

from accounts.models import Person
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.recipe import Recipe, encode_recipe
from runs.models import Head, Run
from runs.states import EXTENDABLE, LIVE, Why, move
from runs.timeline import add_action


def most_steps() -> int:
    """The longest that a run may be."""
    field = next(field for field in msgspec.inspect.type_info(Recipe).fields if field.name == "target_steps")  # type: ignore[attr-defined]
    return int(field.type.le)


@transaction.atomic
def extend_run(*, run: Run, target_steps: int, by: Person | None = None) -> None:
    """More steps; the learning rate falls more slowly from the next one on. Raises Problem E315, E316."""
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state not in EXTENDABLE or now.wanted == Run.Wanted.FINISHED:
        raise Problem.of("E315", state=ending_word(now))
    recipe = now.parsed_recipe
    if not recipe.target_steps < target_steps <= most_steps():
        raise Problem.of("E316", steps=f"{recipe.target_steps:,}", most=f"{most_steps():,}")
    longer = msgspec.structs.replace(recipe, target_steps=target_steps)
    Run.objects.filter(pk=run.pk).update(recipe=encode_recipe(longer).decode(), automatic_steps=False)
    run.refresh_from_db()
    deed = f"extended the run: {target_steps:,} steps instead of {recipe.target_steps:,}."
    add_action(run=run, kind="extended", deed=deed, by=by)


@transaction.atomic
def end_run(*, run: Run, by: Person | None = None) -> None:
    """No further round begins; the state of the present step is handed in and released.

    Raises Problem E315, E320, E412.
    """
    now = Run.objects.select_for_update().get(pk=run.pk)
    if now.state not in LIVE:
        raise Problem.of("E315", state=ending_word(now))
    if now.wanted == Run.Wanted.FINISHED:
        return
    if now.rollback_index is not None:
        raise Problem.of("E412", reason="it is being rolled back")
    step = Head.objects.get(run=run).step
    if not step:
        raise Problem.of("E320")
    move(run, Why.ENDED)
    where = f"at step {step:,}, or after the step under way"
    add_action(run=run, kind="ending", deed=f"is ending the run {where}.", by=by)


def ending_word(run: Run) -> str:
    """The run's state as an error names it."""
    return "finishing" if run.wanted == Run.Wanted.FINISHED and run.state in LIVE else run.state
