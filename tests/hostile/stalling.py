"""Attacks on liveness: claims without deliveries, stalled rounds, lost rounds."""

from collections.abc import Iterable

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import AccumulatorId
from peer_agent.protocol.log.records import Unit
from tests.hostile.behaviours import Behaviour, Memory, Word, changed, spoiled, times, without

STRANGE = Unit(epoch=0, shard=0, start=0, stop=4)


def _name(memory: Memory) -> AccumulatorId:
    return AccumulatorId(f"{memory.chance.getrandbits(128):032x}")


def _report(memory: Memory, units: Iterable[Unit], base: int, **more: object) -> m.Report:
    hello = memory.hello()
    done = tuple(m.DoneUnit(unit, base) for unit in units)
    report = m.Report(
        run=memory.run,
        accumulator=hello.accumulator,
        done=done,
        loss_tokens=0,
        loss_sum=0.0,
        step=hello.step,
        index=hello.log_index,
        digest=hello.digest,
    )
    return replace(report, **more)


def _boast(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim that every leased unit is done, but never offer any of them."""
    hello = memory.hello()
    if isinstance(message, m.Report):
        units = [*(done.unit for done in hello.done), *hello.undone]
        return (_report(memory, units, max(hello.step, 0)),)
    return () if isinstance(message, m.Offer) else (message,)


def _boast_of_a_lease(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    if not isinstance(message, m.Lease):
        return ()
    return _boast(memory, _report(memory, (), 0))


def _started_anew(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    """Claim after each plan that the offered accumulator has been lost."""
    if not isinstance(message, m.PlanHead):
        return ()
    return (memory.hello(accumulator=_name(memory), done=(), undone=()),)


def _goodbye(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    return (m.Leave(run=memory.run),) if isinstance(message, m.PlanHead) else ()


def _returned(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    """Give back the units that this puppet has just offered."""
    if not isinstance(message, m.PlanHead):
        return ()
    units = tuple(done.unit for done in memory.hello().done)
    return (m.UnitsReturned(run=memory.run, units=units, reason="stale"),)


def _give_back(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    if not isinstance(message, m.Lease):
        return ()
    return (m.UnitsReturned(run=memory.run, units=message.units, reason="leaving"),)


def _not_finite(memory: Memory) -> Word:
    return m.UnitsReturned(run=memory.run, units=memory.hello().undone, reason="non_finite")


def _digest(memory: Memory, message: m.Message) -> Iterable[Word]:
    is_told = isinstance(message, m.Report | m.Hello)
    return (replace(message, digest=f"{memory.chance.getrandbits(64):016x}"),) if is_told else (message,)


def _from_the_future(memory: Memory, message: m.Message) -> Iterable[Word]:
    del memory
    if isinstance(message, m.Hello | m.Attempted):
        return (replace(message, fence=2**32 - 1, step=2**53),)
    if isinstance(message, m.Report):
        return (replace(message, step=2**53, index=2**53),)
    return (replace(message, index=2**53),) if isinstance(message, m.Heartbeat) else (message,)


SPEED = "a claim of 1e12 samples a second stops twenty"
HANGS = "one machine that heartbeats without computing stops two to four equal trainers"
PACE = "a slot is dropped relative to the pace of that reducer; 0.2 chunks a second was a livelock of void rounds"
VOTES = "votes count per person; a person whose machines differ abstains"

STALLING = (
    Behaviour(name="heartbeats_without_computing", fault=HANGS, computes=0, bites=("arrived Report", "told Lease")),
    Behaviour(
        name="three_that_heartbeat_without_computing",
        fault=HANGS,
        machines=3,
        computes=0,
        bites=("arrived Report", "told Lease"),
    ),
    Behaviour(name="stops_computing_after_a_while", fault=HANGS, computes=6, bites=("note silent",)),
    Behaviour(
        name="three_that_stop_computing_after_a_while", fault=HANGS, machines=3, computes=6, bites=("note silent",)
    ),
    Behaviour(
        name="claims_1e12_samples_a_second",
        fault=SPEED,
        adds=times(1, lambda memory: spoiled(_report(memory, (), 0), samples_per_s=1e12), every=6),
        bites=("refused E206",),
    ),
    Behaviour(
        name="delivers_each_lease_at_once_and_offers_nothing",
        fault=SPEED,
        says=_boast,
        answers=_boast_of_a_lease,
        computes=0,
        bites=("changed", "arrived Report"),
    ),
    Behaviour(
        name="three_that_deliver_each_lease_at_once_and_offer_nothing",
        fault=SPEED,
        machines=3,
        says=_boast,
        answers=_boast_of_a_lease,
        computes=0,
        bites=("changed", "arrived Report"),
    ),
    Behaviour(
        name="reports_work_that_was_not_leased",
        fault="refusals sit out 1, 4, 16 rounds; no leases meanwhile",
        adds=times(1, lambda memory: _report(memory, (STRANGE,), memory.hello().step), every=4),
        bites=("told AccumulatorRevoked",),
    ),
    Behaviour(
        name="reports_work_of_a_step_long_ago",
        fault="refusals sit out 1, 4, 16 rounds; no leases meanwhile",
        adds=times(1, lambda memory: _report(memory, memory.hello().undone[:1], 0), every=4),
        bites=("told AccumulatorRevoked",),
    ),
    Behaviour(
        name="works_and_never_offers",
        fault="offers close by an adaptive deadline; the dropped or silent sit out one round",
        says=without(m.Offer),
        bites=("changed", "told Cut"),
    ),
    Behaviour(
        name="three_that_work_and_never_offer",
        fault="offers close by an adaptive deadline; the dropped or silent sit out one round",
        machines=3,
        says=without(m.Offer),
        bites=("changed", "told Cut"),
    ),
    Behaviour(name="offers_and_never_sends_a_chunk", fault=PACE, chunks_per_s=0.0, bites=("note dropped",)),
    Behaviour(
        name="three_that_offer_and_never_send_a_chunk",
        fault=PACE,
        machines=3,
        chunks_per_s=0.0,
        bites=("note void",),
    ),
    Behaviour(name="sends_0_2_chunks_a_second", fault=PACE, chunks_per_s=0.2, bites=("note dropped",)),
    Behaviour(name="sends_a_chunk_just_in_time", fault=PACE, chunks_per_s=0.26, bites=("note dropped",)),
    Behaviour(
        name="three_that_send_0_2_chunks_a_second", fault=PACE, machines=3, chunks_per_s=0.2, bites=("note void",)
    ),
    Behaviour(
        name="sends_chunks_that_do_not_match",
        fault="refused work sits out 1, 4, 16 rounds, an hour at most",
        damaged=True,
        bites=("note dropped", "told AccumulatorRevoked"),
    ),
    Behaviour(
        name="three_that_send_chunks_that_do_not_match",
        fault="refused work sits out 1, 4, 16 rounds, an hour at most",
        machines=3,
        damaged=True,
        bites=("note dropped", "told AccumulatorRevoked"),
    ),
    Behaviour(
        name="is_started_anew_at_every_plan",
        fault="the dropped sit out one round and are back with their first delivered unit",
        answers=_started_anew,
        bites=("note dropped",),
    ),
    Behaviour(
        name="three_that_are_started_anew_at_every_plan",
        fault="the dropped sit out one round and are back with their first delivered unit",
        machines=3,
        answers=_started_anew,
        bites=("note dropped",),
    ),
    Behaviour(
        name="leaves_at_every_plan",
        fault="the dropped sit out one round and are back with their first delivered unit",
        answers=_goodbye,
        bites=("note dropped", "arrived Leave"),
    ),
    Behaviour(
        name="returns_what_it_offered",
        fault="units that are returned in a round are in no two updates",
        answers=_returned,
        bites=("arrived UnitsReturned",),
    ),
    Behaviour(
        name="gives_every_lease_back",
        fault="a lost lease shows; leases are not taken from the others",
        answers=_give_back,
        bites=("arrived UnitsReturned", "told Lease"),
    ),
    Behaviour(
        name="returns_units_as_not_finite",
        fault="a run diverges where no machine gets finite gradients, not where one says so",
        adds=times(20, _not_finite),
        bites=("arrived UnitsReturned", "note non-finite"),
    ),
    Behaviour(name="says_another_state_digest", fault=VOTES, says=_digest, bites=("told Reload",)),
    Behaviour(
        name="three_machines_of_one_person_say_another_state_digest",
        fault=VOTES,
        machines=3,
        says=changed(m.Report, digest="f" * 16),
        bites=("told Reload",),
    ),
    Behaviour(
        name="three_machines_of_one_person_hash_another_snapshot",
        fault="replicas report the sha256 of the snapshot; a majority of people admits it",
        machines=3,
        says=changed(m.StateHash, sha256="f" * 64),
        bites=("changed", "arrived StateHash"),
    ),
    Behaviour(
        name="never_acknowledges_a_page_of_the_log",
        fault="the log is resent in pages with acknowledgement",
        says=lambda memory, message: (
            (replace(message, index=0),) if isinstance(message, m.Report | m.Heartbeat) else (message,)
        ),
        bites=("changed", "told Commit"),
    ),
    Behaviour(
        name="speaks_of_fences_and_steps_to_come",
        fault="everything names its attempt; anything else is dropped (rule 2)",
        says=_from_the_future,
        bites=("changed", "arrived Hello"),
    ),
)
