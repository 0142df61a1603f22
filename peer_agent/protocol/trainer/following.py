"""Keep a replica up to date with the log, solely by loading snapshots and applying records."""

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.recipe import parse_recipe
from peer_agent.protocol.sealed import OpenedRecord
from peer_agent.protocol.trainer import speaking, tokens
from peer_agent.protocol.trainer.events import (
    Action,
    Applied,
    Apply,
    Began,
    BytesMissing,
    Dial,
    Ended,
    HandIn,
    Hashed,
    HashState,
    Load,
    Loaded,
    LoadFailed,
    Made,
    Quit,
    Release,
    Settle,
    Tell,
)
from peer_agent.protocol.trainer.rounds import heed_fence, let_go, start_over
from peer_agent.protocol.trainer.speaking import hello, report, say
from peer_agent.protocol.trainer.state import Phase, TrainerState
from peer_agent.protocol.trainer.transitions import Cause, ignores, move
from peer_agent.protocol.trainer.work import (
    clear_included,
    do_again,
    give_up_held,
    has_too_old,
    pause,
    renew,
    work,
)

ASK_AGAIN_S = 10.0  # seconds before the trainer looks again for bytes that no relay had
# Errors that end once the replica has loaded a snapshot
LOADING_ENDS = (codes.COPY_DIFFERS, codes.UPDATE_MISSING, codes.SNAPSHOT_GONE, codes.LOG_TAKEN_BACK)
PENDING = 256  # records waiting for earlier ones: more than two pages of the log


def take_greeting(state: TrainerState, greeting: m.Greeting, seed: int) -> list[Action]:
    """Process the run's description, then follow the log from the snapshot or from the current state."""
    state.unanswered, state.hello_wait_s = max(0, state.unanswered - 1), 0.0
    if greeting.index < state.index and greeting.fence <= state.vouched:
        return []  # the greeting is older than the entries that this replica has applied
    if (fault := _introduce(state, greeting)) is not None:
        return [Quit(fault)]
    actions: list[Action] = [Dial(greeting.listeners), *heed_fence(state, greeting)]
    if state.has_state and greeting.index < state.index:
        state.head = greeting.index
        return [*actions, *_change_branch(state, seed)]
    state.head, state.vouched = max(state.head, greeting.index), greeting.fence
    if state.index == greeting.index and state.log_digest not in (greeting.digest, greeting.snapshot.digest):
        return [*actions, *_change_branch(state, seed)]
    if _is_undone(state):
        return [*actions, *_go_back(state, seed)]
    if not ignores(state, Cause.GREETED):
        facts: dict[str, str | int] = {"title": greeting.title, "step": greeting.snapshot.step}
        told = Tell("Joining “{title}”: loading the model of step {step}.", facts)
        return [*actions, told, *_load(state, Cause.GREETED)]
    return actions + _after_greeting(state, greeting)


def _introduce(state: TrainerState, greeting: m.Greeting) -> Fault | None:
    """Record the run's description. Return a fault if it describes another run or cannot be read."""
    try:
        recipe = parse_recipe(greeting.recipe)
    except Problem as problem:
        return Fault.of("E140", reason=problem.fault.cause.rstrip("."))
    if state.recipe is not None and state.greeting is not None:
        is_same = replace(state.recipe, target_steps=recipe.target_steps, mix=recipe.mix) == recipe
        if not is_same or (state.greeting.shards, state.greeting.elements) != (greeting.shards, greeting.elements):
            return Fault.of("E128")
    state.greeting, state.recipe, state.snapshot = greeting, recipe, greeting.snapshot
    return None


def _after_greeting(state: TrainerState, greeting: m.Greeting) -> list[Action]:
    """Continue after a greeting, if there is a model state.

    If the host has checked the leases, report and work. Otherwise, send a hello as soon as the replica is at the latest
    entry, so that the host can check them.
    """
    if not state.has_state:
        return []
    actions = fall_behind(state)
    if greeting.reconciled:
        return [*actions, *report(state, at_once=True), *speaking.offer(state), *work(state)]
    if state.is_at_head:
        return [*actions, *hello(state)]
    state.hello_due = True  # the host can check the leases once this replica has applied all updates
    return actions


def fall_behind(state: TrainerState) -> list[Action]:
    """Stop computing if the trainer knows of an entry newer than its replica's."""
    if not state.is_at_head and not ignores(state, Cause.FELL_BEHIND):
        pause(state)
        move(state, Cause.FELL_BEHIND, Phase.FOLLOWING)
    return []


# --- loading -----------------------------------------------------------------------------------------------------


def take_snapshot(state: TrainerState, snapshot: m.Snapshot, seed: int) -> list[Action]:
    """Remember a newer snapshot. Load it after a rollback, or if no relay has the averages that this replica needs."""
    if state.snapshot is None or snapshot.index > state.snapshot.index:
        state.snapshot = snapshot
    return _go_back(state, seed) if _is_undone(state) else _leap(state, seed)


def _leap(state: TrainerState, seed: int) -> list[Action]:
    if ignores(state, Cause.NEWER_SNAPSHOT) or state.snapshot is None or state.snapshot.index <= state.index:
        return []
    return _begin_anew(state, seed, Cause.NEWER_SNAPSHOT)


def take_reload(state: TrainerState, message: m.Reload, seed: int) -> list[Action]:
    """Reload this replica, because the site reports that its state differs. React only once to each reported step."""
    if ignores(state, Cause.RELOAD) or message.step <= state.reloaded_at or message.step > state.step:
        return []
    state.reloaded_at = message.step
    return [Began(Fault.of("E109", step=message.step)), *reload(state, seed)]


def reload(state: TrainerState, seed: int) -> list[Action]:
    return [] if ignores(state, Cause.RELOAD) else _begin_anew(state, seed, Cause.RELOAD)


def _begin_anew(state: TrainerState, seed: int, cause: Cause) -> list[Action]:
    """Load the snapshot, and give back all units, because their gradients belong to the state being replaced."""
    units = (*(done.unit for done in state.done), *state.undone)
    returned = say(state, m.UnitsReturned(run=state.run, units=units, reason="stale")) if units else []
    actions = [*let_go(state), *renew(state, seed), *returned]
    state.step, state.index, state.digest = -1, -1, ""
    state.applying, state.pending, state.gap_told = None, {}, -1
    return [*actions, *_load(state, cause)]


def _load(state: TrainerState, cause: Cause) -> list[Action]:
    assert state.greeting is not None
    assert state.snapshot is not None
    state.jobs += 1
    state.job, state.loading = state.jobs, state.snapshot
    move(state, cause, Phase.LOADING)
    return [Load(state.job, state.greeting, state.snapshot)]


def take_loaded(state: TrainerState, loaded: Loaded) -> list[Action]:
    """Use the loaded snapshot as the replica. Send a hello that lists no work, and follow the log from there."""
    if ignores(state, Cause.LOADED) or loaded.job != state.job or state.loading is None:
        return []
    state.step, state.index, state.digest = state.loading.step, state.loading.index, loaded.digest
    state.log_digest = state.loading.digest
    state.loading = None
    state.held = tokens.nothing(state.chunks)
    return [Ended(LOADING_ENDS), *_arrive(state, Cause.LOADED), *hello(state), *work(state)]


def take_load_failed(state: TrainerState, failed: LoadFailed) -> list[Action]:
    """Ask the site for another snapshot with a hello, because the site has deleted this one.

    This can happen if the machine has slept.
    """
    if ignores(state, Cause.SNAPSHOT_GONE) or failed.job != state.job:
        return []
    state.loading = None
    move(state, Cause.SNAPSHOT_GONE, Phase.ABSENT)
    return [Began(Fault.of("E326")), *hello(state)]


def _change_branch(state: TrainerState, seed: int) -> list[Action]:
    """Load a snapshot, because this replica's last entry is not in the site's log.

    The site's database was restored from a backup, and the run went on from there without this machine (rule 16).
    """
    return [Began(Fault.of("E142", step=state.step)), *reload(state, seed)]


# --- records -----------------------------------------------------------------------------------------------------


def _is_undone(state: TrainerState) -> bool:
    """Return True if the run has rolled back past this replica's state."""
    return state.has_state and state.index < state.rolled_back


def _go_back(state: TrainerState, seed: int) -> list[Action]:
    """Load the state that the rollback restores, from a snapshot at or after the rollback's entry."""
    if state.snapshot is None or state.snapshot.index < state.rolled_back:
        return [] if state.unanswered else hello(state)  # the answer to the hello names the snapshot
    facts: dict[str, str | int] = {"step": f"{state.snapshot.step:,}"}
    told = Tell("The run was rolled back to step {step}: loading the model again. You keep your credit.", facts)
    state.reloaded_at = -1
    return [told, *reload(state, seed)]


def take_record(state: TrainerState, record: OpenedRecord, seed: int) -> list[Action]:
    """Process a committed entry: apply the next one, store a later one, ignore an earlier one."""
    state.head = max(state.head, record.index)
    if record.record.kind == "rollback":
        state.rolled_back = max(state.rolled_back, record.index)
    if _is_undone(state):
        return [*fall_behind(state), *_go_back(state, seed)]
    if not state.has_state:
        return []  # after loading, the trainer reports which records it needs
    if record.index <= state.index:
        is_as_asked = record.index == state.index and state.phase is not Phase.APPLYING
        return _hand_in(state, record) if is_as_asked else []
    state.vouched = max(state.vouched, record.fence)
    known = state.pending.get(record.index)
    if known is not None and (known.digest == record.digest or known.record.fence > record.record.fence):
        # The site has resent the record, perhaps to request a snapshot.
        flags = {"snapshot": record.snapshot or known.snapshot, "hash_state": record.hash_state or known.hash_state}
        state.pending[record.index] = replace(known, **flags)
        return []
    if known is not None or len(state.pending) < PENDING or record.index == state.index + 1:
        state.pending[record.index] = record
    actions = fall_behind(state)
    if state.index + 1 not in state.pending:
        return [*actions, *speaking.gap(state)]
    if not _follows(state) and state.phase is not Phase.APPLYING:
        return [*actions, *_change_branch(state, seed)]
    return actions if ignores(state, Cause.NEXT_RECORD) else [*actions, *_apply(state, Cause.NEXT_RECORD)]


def _follows(state: TrainerState) -> bool:
    """Return True if the next pending record continues this replica's log rather than another branch."""
    return state.pending[state.index + 1].record.previous == state.log_digest


def _apply(state: TrainerState, cause: Cause) -> list[Action]:
    """Begin to apply the next record. An open round stays open, because its averages are needed."""
    record = state.pending[state.index + 1]
    pause(state)
    state.jobs += 1
    state.job, state.applying = state.jobs, record
    move(state, cause, Phase.APPLYING)
    return [Apply(state.job, record, patient=state.snapshot is None or state.snapshot.index < record.index)]


def take_applied(state: TrainerState, applied: Applied, seed: int) -> list[Action]:
    """Process an applied update: remove the included work, end the round, and report the new step."""
    if ignores(state, Cause.APPLIED) or applied.job != state.job or state.applying is None:
        return []
    record = state.pending.pop(state.applying.index)
    state.applying = None
    is_whole, actions = clear_included(state, record), list[Action]()
    state.step, state.index, state.digest = record.step, record.index, applied.digest
    state.log_digest = record.digest
    actions += [*_settle_round(state, record), Made(record), *_found(state), *_hand_in(state, record)]
    if is_whole and state.overlaps and has_too_old(state):
        actions += give_up_held(state)
    actions += _arrive(state, Cause.APPLIED)
    if not is_whole or has_too_old(state):
        return [*actions, *_given_back(state), *start_over(state, Cause.REVOKED, seed)]
    if state.hello_due and state.is_at_head:
        return [*actions, *hello(state), *work(state)]
    return [*actions, *report(state, at_once=state.phase is not Phase.APPLYING), *work(state)]


def _given_back(state: TrainerState) -> list[Action]:
    """Tell the user if work returns to the pool because too many updates left it out (rule 10)."""
    if not has_too_old(state):
        return []
    told = Tell(
        "{samples} samples computed here return to the pool: they missed two steps and are too old for the next.",
        {"samples": state.samples},
    )
    return [told]


def _settle_round(state: TrainerState, record: OpenedRecord) -> list[Action]:
    """Update the gradient sums to match the record. If this trainer took no part in the step, redo its fresh work."""
    round_, state.round = state.round, None
    if round_ is None or round_.cut.step != record.step - 1:
        return [*([] if round_ is None else let_go(state)), *do_again(state)]
    state.passed_over = 0
    is_ours = round_.offer is not None and record.own is not None and record.own.accumulator == state.accumulator
    if record.own is not None and is_ours:
        return [Settle(tokens.spans_of(record.own))]
    return [Release()]


def take_missing(state: TrainerState, missing: BytesMissing, seed: int) -> list[Action]:
    """Load a newer snapshot, because no relay has an update's averages. If there is none, search again later."""
    if ignores(state, Cause.BYTES_MISSING) or missing.job != state.job or state.applying is None:
        return []
    step, state.applying, state.retry_at = state.applying.step, None, state.now + ASK_AGAIN_S
    move(state, Cause.BYTES_MISSING, Phase.LACKING)
    return _leap(state, seed) or [Began(Fault.of("E114", step=step))]


def _found(state: TrainerState) -> list[Action]:
    """Clear the error about missing bytes if they have arrived."""
    was_missing, state.retry_at = state.retry_at > 0.0, 0.0
    return [Ended((codes.UPDATE_MISSING,))] if was_missing else []


def retry(state: TrainerState) -> list[Action]:
    """Search again for missing bytes once the pause since the last search is over."""
    if ignores(state, Cause.RETRY) or state.now < state.retry_at:
        return []
    return _apply(state, Cause.RETRY)


def _arrive(state: TrainerState, cause: Cause) -> list[Action]:
    """Continue after the model state has changed: apply the next record, wait for it, or accumulate gradients."""
    if state.index + 1 in state.pending and _follows(state):
        return _apply(state, cause)
    state.pending.pop(state.index + 1, None)  # from another branch: the site will resend it or send another one
    move(state, cause, Phase.ACCUMULATE if state.is_at_head else Phase.FOLLOWING)
    return []


def _hand_in(state: TrainerState, record: OpenedRecord) -> list[Action]:
    """Hash or upload the state at an entry if the commit requests this, even if the entry was applied earlier."""
    hashing: list[Action] = [HashState(state.index, state.step)] if record.hash_state else []
    return [*hashing, *([HandIn(state.index, state.step)] if record.snapshot else [])]


def say_hash(state: TrainerState, hashed: Hashed) -> list[Action]:
    """Report the snapshot's hash. The site accepts a snapshot only if it has the majority's hash."""
    message = m.StateHash(run=state.run, index=hashed.index, step=hashed.step, sha256=hashed.sha256, size=hashed.size)
    return say(state, message)
