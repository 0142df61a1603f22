"""Faults in work that overlaps the round (staleness 1): in the trainer, the coordinator and the accumulator."""

from tests.mutations.mutation import Mutation

TRAINER, COORDINATOR = "peer_agent/protocol/trainer/", "peer_agent/protocol/coordinator/"
OVERLAP = ("tests/protocol/trainer/test_overlap.py",)
WAITING = ("tests/protocol/coordinator/round/test_replicas.py",)
RECORDING = ("tests/protocol/coordinator/round/test_recording.py",)
SUMS = ("tests/trainer/test_jobs.py",)
FREE = (
    "        async with self.busy:\n            await asyncio.to_thread(self.replica.apply, record, digest, gradient)\n"
)
FREE += "            return await asyncio.to_thread(self.replica.digest)"


def trainer(name: str, file: str, before: str, after: str) -> Mutation:
    return Mutation(name, f"{TRAINER}{file}.py", before, after, OVERLAP)


def coordinator(name: str, file: str, before: str, after: str) -> Mutation:
    return Mutation(name, f"{COORDINATOR}{file}.py", before, after, WAITING)


OVERLAPPING: tuple[Mutation, ...] = (
    trainer(
        "the cut ends the unit in hand",
        "work",
        "    if not state.overlaps:\n        abandon",
        "    if True:\n        abandon",
    ),
    trainer("an offer grows while it is frozen", "rounds", "units=listed(state.kept)", "units=state.done"),
    trainer("an offer weighs what it does not hold", "rounds", "=tokens_of(state.kept)", "=state.loss_tokens"),
    trainer("what is offered counts for the next quota", "state", "self.overlaps and self.round is not None", "False"),
    trainer(
        "nothing follows the cut",
        "rounds",
        "Freeze(state.jobs, cut, state.held), *work(state)]",
        "Freeze(state.jobs, cut, state.held)]",
    ),
    trainer("a unit counts as of the step that it ends in", "work", "Done(result.base,", "Done(state.step,"),
    trainer("a unit of two steps ago is kept", "work", " or result.base < oldest(state):", ":"),
    trainer(
        "what is too old keeps the second sum from the next offer",
        "following",
        "is_whole and state.overlaps and has",
        "False and has",
    ),
    trainer(
        "what goes back is still weighed",
        "work",
        "state.kept, state.held = {}, tokens.nothing(state.chunks)",
        "state.kept = {}",
    ),
    trainer(
        "the update waits for one more unit", "work", "Phase.APPLYING and not state.round.is_gathered", "Phase.APPLYING"
    ),
    trainer("two steps behind units are begun", "work", "state.head - state.index > state.staleness or ", ""),
    coordinator(
        "a round begins without who is about to be there",
        "advance",
        " and not awaits_replicas(state)",
        "",
    ),
    coordinator("it waits for ever", "acting", "state.now < state.replicas.until or any(", "True or any("),
    coordinator("it waits for who is gone", "membership", "    state.replicas.peers.discard(member.peer)\n", ""),
    coordinator(
        "it waits for who was left out",
        "round/replicas",
        "member.reliability.rate} - left_out",
        "member.reliability.rate}",
    ),
    coordinator(
        "it waits less than the plan takes",
        "round/replicas",
        "round_.planned_at + (1 + MOST_SIGMA) * duration_s)",
        "state.now)",
    ),
    coordinator("a new host waits for nobody", "advance", "        await_return(state)\n", ""),
    coordinator("work during a round is not heard of", "reports", " and not state.recipe.staleness:", ":"),
    coordinator(
        "work during a round is counted twice",
        "workers/counts",
        "max(0, member.done_samples - sum(done.unit.samples for done in offer.units))",
        "member.done_samples",
    ),
    coordinator(
        "a batch takes from the commit on",
        "round/committing",
        "round_.cut_at if state.recipe.staleness else state.now",
        "state.now",
    ),
    coordinator(
        "a round that stands still is not seen",
        "workers/counts",
        "    if state.round is None or not state.recipe.staleness:\n",
        "    if True:\n",
    ),
    coordinator(
        "the clock stands during a round",
        "workers/counts",
        "    if not state.recipe.staleness:\n        return state.phase",
        "    if True:\n        return state.phase",
    ),
    coordinator("whoever says more is leased more", "workers/leasing", "later + min(later, quota)", "later + later"),
    Mutation(
        "a record names no stale units",
        f"{COORDINATOR}round/recording.py",
        "done.base < state.step)",
        "done.base < 0)",
        RECORDING,
    ),
    Mutation(
        "records of all runs name them",
        f"{COORDINATOR}round/recording.py",
        "    if not state.recipe.staleness:\n        return ()\n",
        "",
        RECORDING,
    ),
    Mutation(
        "an update is made under a unit",
        "peer_agent/trainer/jobs.py",
        FREE,
        FREE.replace("async with self.busy", "async with asyncio.Lock()"),
        SUMS,
    ),
    Mutation(
        "both sums are thrown away",
        "peer_agent/trainer/jobs.py",
        "        self.accumulator = Accumulator(self.grid)\n\n    def renew",
        "        self.renew()\n\n    def renew",
        SUMS,
    ),
    Mutation(
        "an update that is not wanted is made",
        "peer_agent/trainer/jobs.py",
        "        if self.agent.core.job == action.job:\n",
        "        if True:\n",
        ("tests/trainer/test_jobs.py",),
    ),
)
