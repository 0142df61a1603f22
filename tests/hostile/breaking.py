"""Attacks on the host and on other peers: impossible values, floods, and false identities."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from peer_agent.protocol import messages as m
from peer_agent.protocol.log.records import Included, Unit
from peer_agent.protocol.wire import Frame, Kind, encode_frame
from tests.hostile.behaviours import Behaviour, Memory, Word, changed, times, without, written

BOUNDED = "every number is bounded where it is decoded"
LOSS = "two offers with loss_sum 1.7e308 end a run for ever"
BUDGET = "a budget of messages and bytes a link; a full channel costs that peer alone"
PAGES = "the log is resent in pages with acknowledgement"
HUGE = 1.7e308


def _more_tokens(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim in the hello to carry a large gradient, then offer the tokens for it."""
    del memory
    if isinstance(message, m.Hello):
        return (replace(message, carried=2**53),)
    if isinstance(message, m.Offer):
        return (replace(message, weights=tuple(replace(w, tokens=w.tokens + 2**40) for w in message.weights)),)
    return (message,)


def _twice(memory: Memory, message: m.Message) -> Iterable[Word]:
    del memory
    return (message, replace(message, root=bytes(32))) if isinstance(message, m.Offer) else (message,)


def _anothers(memory: Memory) -> Iterable[Word]:
    if not memory.others or not memory.is_tick(5):
        return ()
    return (memory.hello(accumulator=memory.others[-1]),)


def _as_a_relay(memory: Memory, message: m.Message) -> Iterable[Word]:
    """Claim, as a trainer, to be reachable, to reduce and to keep the log."""
    if not isinstance(message, m.Hello):
        return (message,)
    return (replace(message, url=f"ws://{memory.me[:8]}", reduces=True, keeps_log=True),)


def _words_of_a_relay(memory: Memory, message: m.Message | m.PlanHead) -> Iterable[Word]:
    if not isinstance(message, m.PlanHead):
        return ()
    return relays_words(memory, message)


def relays_words(memory: Memory, plan: m.PlanHead) -> list[Word]:
    """Claim that every span is averaged and stored, that every contributor's chunks are damaged, and that most slots
    are making no progress.
    """
    place, everybody = memory.place(), tuple(range(plan.contributors))
    words: list[Word] = [m.SlotRefused(**place, slot=slot, chunk=0, code="E211") for slot in everybody]
    words.append(m.Progress(**place, received=tuple((slot, 2**31 if not slot else 0) for slot in everybody)))
    for span in plan.spans:
        included = (Included(span.first, span.stop, everybody),)
        words.append(m.SpanDone(**place, span=span.span, root=bytes(32), sum_squares=1.0, included=included))
        words.append(m.Have(**place, span=span.span, root=bytes(32), sum_squares=1.0))
    return words


def _many_units(memory: Memory) -> Word:
    units = tuple(Unit(epoch=0, shard=0, start=4 * n, stop=4 * n + 4) for n in range(100_000))
    return memory.hello(undone=units)


def _moved(memory: Memory) -> Word:
    return memory.hello(url=f"ws://10.0.0.1:{memory.chance.randrange(1, 65_536)}/")


def _heartbeat(memory: Memory) -> Word:
    return m.Heartbeat(run=memory.run, index=0)


def _out_of_place(memory: Memory) -> Word:
    return m.Void(**memory.place(), round=1, reason="hostile")


def _false_audits(memory: Memory) -> Iterable[Word]:
    """Answer the next audits with sketches of any length."""
    for number in range(3):
        sketch = memory.chance.randbytes(memory.chance.choice((0, 7, 1024)))
        yield m.Audited(run=memory.run, number=number, sketch=sketch, loss_sum=1.0, loss_tokens=1)


def _false_arrivals(memory: Memory) -> Word:
    """Report extremely slow links from all the reducers, and averages that no reducer made."""
    plan = memory.plan
    senders = sorted({span.reducer for span in plan.spans}) if plan is not None else []
    arrivals = tuple(m.Arrival(sender, 2**53, 0.0, 1e6) for sender in senders)
    return m.Arrivals(**memory.place(), arrivals=arrivals, holds=bytes(32))


def _reaches_nobody(memory: Memory) -> Word:
    return m.Reaches(run=memory.run, listeners=())


def _false_probe(memory: Memory) -> Word:
    """Report for every probe that no bytes arrived within a second."""
    return m.Probed(run=memory.run, number=memory.ticks % 8, size=0, seconds=1.0)


def _frame(memory: Memory) -> Word:
    return encode_frame(Frame(Kind.GRADIENT, memory.run, 1, 1, 1, 0, 0, 0, bytes(64)))


def _garbage(memory: Memory) -> Word:
    return bytes([Kind.MESSAGE]) + memory.chance.randbytes(200)


def _deep(memory: Memory) -> Word:
    del memory
    return bytes([Kind.MESSAGE]) + b"\x91" * 100_000 + b"\xc0"


def _overlong(memory: Memory) -> Word:
    del memory
    return bytes([Kind.MESSAGE]) + bytes(m.MAX_MESSAGE)


def _bounds(name: str, value: Any, kind: type[m.Message] = m.Offer, fields: str = "loss_sum", **more: Any) -> Behaviour:
    """Return a behaviour whose message contains a number outside its bounds."""
    return Behaviour(
        name=name, fault=f"{BOUNDED}; {LOSS}", says=written(kind, **{fields: value}), bites=("refused E206",), **more
    )


BREAKING = (
    _bounds("offers_a_loss_of_1_7e308", HUGE),
    _bounds("three_that_offer_a_loss_of_1_7e308", HUGE, machines=3),
    _bounds("offers_a_loss_that_is_no_number", float("nan")),
    _bounds("offers_an_infinite_norm", float("inf"), fields="norm"),
    _bounds("offers_tokens_below_zero", -1, fields="loss_tokens"),
    _bounds("reports_a_step_beyond_every_number", 2**63, m.Report, "step"),
    _bounds("says_hello_with_carried_tokens_below_zero", -1, m.Hello, "carried"),
    Behaviour(
        name="says_that_links_are_slow_and_averages_others",
        fault="a receiver can be wrong about time alone, and about no more of it than has passed (rule 31)",
        adds=lambda memory: (_false_arrivals(memory),),
        bites=("arrived Arrivals",),
    ),
    Behaviour(
        name="says_that_it_reaches_nobody",
        fault="one person's word excludes at most a quarter of those who listen (rule 27)",
        adds=times(1, _reaches_nobody, every=4),
        bites=("arrived Reaches",),
    ),
    Behaviour(
        name="answers_audits_that_nobody_asked_for",
        fault="only the machine that was asked may answer an audit, and only once",
        adds=lambda memory: tuple(_false_audits(memory)),
        bites=("arrived Audited",),
    ),
    Behaviour(
        name="says_that_probes_carried_nothing",
        fault="nothing is lowered by one peer's word of a probe (rule 31)",
        adds=lambda memory: (_false_probe(memory),),
        bites=("arrived Probed",),
    ),
    Behaviour(
        name="three_that_never_have_the_averages",
        fault="a second copy has no veto (rule 5)",
        machines=3,
        says=without(m.Arrivals),
        bites=("arrived Offer",),
    ),
    Behaviour(
        name="three_that_offer_the_greatest_loss_and_norm_allowed",
        fault=LOSS,
        machines=3,
        says=changed(m.Offer, loss_sum=1e15, norm=1e45),
        bites=("changed", "arrived Offer"),
    ),
    Behaviour(
        name="four_that_offer_next_to_no_norm",
        fault="norms are bounded by the median over people (rule 12)",
        machines=4,
        says=changed(m.Offer, norm=1e-30),
        bites=("changed", "arrived Offer"),
    ),
    Behaviour(
        name="says_that_its_loss_is_nothing",
        fault="the curve is a mean over people whose loss is near the median",
        says=changed(m.Offer, loss_sum=1.0),
        bites=("changed", "note refused"),
    ),
    Behaviour(
        name="offers_more_than_it_was_leased",
        fault="carried comes with the hello, checked against the last records",
        says=_more_tokens,
        bites=("told Notice E219",),
    ),
    Behaviour(name="offers_twice", fault="an offer is the first one", says=_twice, bites=("changed", "arrived Offer")),
    Behaviour(
        name="takes_over_accumulators_of_others",
        fault="nobody gets what another's accumulator holds",
        adds=_anothers,
        bites=("told AccumulatorRevoked",),
        on_wire=False,
    ),
    Behaviour(
        name="trainer_that_speaks_as_a_relay",
        fault="who may reduce follows from what the others reach, who keeps the log from its role (rules 5 and 27)",
        says=_as_a_relay,
        answers=_words_of_a_relay,
        bites=("arrived SpanDone", "arrived Have", "arrived SlotRefused", "arrived Progress"),
    ),
    # --- floods
    Behaviour(
        name="hello_storm",
        fault=BUDGET,
        adds=times(20, lambda memory: memory.hello()),
        bites=("told Greeting", "arrived Hello"),
    ),
    Behaviour(
        name="asks_for_the_log_from_0_again_and_again",
        fault=PAGES,
        adds=times(8, lambda memory: memory.hello(log_index=0)),
        bites=("told Commit", "arrived Hello"),
    ),
    Behaviour(name="moves_its_address_all_the_time", fault=BUDGET, adds=times(20, _moved), bites=("arrived Hello",)),
    Behaviour(
        name="hellos_with_100_000_units",
        fault=BUDGET,
        adds=times(1, _many_units, every=40),
        bites=("told AccumulatorRevoked",),
    ),
    Behaviour(name="flood_of_messages", fault=BUDGET, adds=times(3000, _heartbeat, every=30), bites=("refused E370",)),
    Behaviour(name="overlong_messages", fault=BUDGET, adds=times(1, _overlong, every=10), bites=("refused E210",)),
    # --- nonsense
    Behaviour(
        name="bytes_that_are_no_message", fault=BOUNDED, adds=times(1, _garbage, every=4), bites=("refused E206",)
    ),
    Behaviour(
        name="a_message_of_100_000_levels", fault=BOUNDED, adds=times(1, _deep, every=4), bites=("refused E206",)
    ),
    Behaviour(
        name="frames_on_the_control_link", fault=BOUNDED, adds=times(1, _frame, every=4), bites=("refused E208",)
    ),
    Behaviour(
        name="says_what_only_a_host_says", fault=BOUNDED, adds=times(1, _out_of_place, every=4), bites=("refused E208",)
    ),
    # --- identities
    Behaviour(
        name="says_goodbye_and_stays",
        fault="a message of somebody who is no member is answered with Rehello",
        adds=times(1, lambda memory: m.Leave(run=memory.run), every=3),
        bites=("arrived Leave", "told Rehello", "note left"),
    ),
    Behaviour(
        name="leaves_and_joins_every_second", fault="leases' grace", link="comes and goes", bites=("went", "note left")
    ),
    Behaviour(
        name="three_that_leave_and_join_every_second",
        fault="leases' grace",
        machines=3,
        link="comes and goes",
        bites=("went", "note left"),
    ),
    Behaviour(
        name="an_old_socket_says_goodbye",
        fault="an old socket ends the new session",
        link="two sockets",
        bites=("said by an old socket",),
        never=("note left",),
    ),
    Behaviour(
        name="a_copied_home", fault="two agents with one copied home are told", link="copied home", bites=("went",)
    ),
)
