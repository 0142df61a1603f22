"""A contributor's sending side: a reducer that opens late or is blocked delays no other."""

import asyncio
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from peer_agent.averaging.assembly import Assembly
from peer_agent.protocol import messages as m
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import leaf_of, root_of, span_leaf
from peer_agent.protocol.wire import HEADER, Frame, Kind
from peer_agent.trainer import round as trainer_round
from peer_agent.trainer.round import OpenRound, contribute
from tests.agent.scripted_site import PATIENCE_S
from tests.averaging.rounds import GRID, OTHER_RELAY, RELAY, averaged, contributor, frame, plan_of, record_of


class Taking:
    """A link that records the bodies sent over it. If `frozen`, it accepts none."""

    def __init__(self, *, frozen: bool = False) -> None:
        self.frozen, self.taken, self.asked = frozen, asyncio.Queue[object](), asyncio.Event()

    async def send(self, *bodies: object) -> None:
        self.asked.set()
        if self.frozen:
            await asyncio.Event().wait()
        for body in bodies:
            self.taken.put_nowait(body)


class Links:
    def __init__(self, links: dict[PeerId, Taking]) -> None:
        self.open = links


def a_round(reducers: Iterable[PeerId] = (RELAY, OTHER_RELAY)) -> tuple[OpenRound, m.Plan]:
    sending = contributor(1, 100).offer("fp32")
    plan = plan_of([sending], reducers=tuple(reducers))
    place = {"step": plan.step, "fence": plan.fence, "attempt": plan.attempt, "round": plan.round}
    cut = m.Cut(run=plan.run, codec="fp32", chunk_elements=GRID.chunk_elements, **place)
    round_ = OpenRound(cut, Assembly(GRID, "fp32"))
    round_.sending = sending
    return round_, plan


def opening(plan: m.Plan) -> m.Open:
    return m.Open(run=plan.run, step=plan.step, fence=plan.fence, attempt=plan.attempt, slot=0)


async def test_late_reducer_does_not_wait_for_a_blocked_one() -> None:
    round_, plan = a_round()
    round_.follow(plan, 0)
    frozen, late = Taking(frozen=True), Taking()
    sending = asyncio.create_task(contribute(round_, Links({RELAY: frozen, OTHER_RELAY: late})))  # type: ignore[arg-type]
    round_.serve(RELAY, opening(plan))
    async with asyncio.timeout(PATIENCE_S):
        await frozen.asked.wait()
        round_.serve(OTHER_RELAY, opening(plan))
        bodies = [await late.taken.get() for _ in range(1 + 3)]
    assert isinstance(bodies[0], m.Leaves)
    assert [body.chunk for body in bodies[1:] if isinstance(body, Frame)] == [2, 3, 4]
    sending.cancel()
    await asyncio.wait([sending])


async def test_unsent_chunks_stay_here_after_sending_is_stopped() -> None:
    round_, plan = a_round()
    round_.follow(plan, 0)
    frozen = Taking(frozen=True)
    round_.task = asyncio.create_task(contribute(round_, Links({RELAY: frozen})))  # type: ignore[arg-type]
    round_.serve(RELAY, opening(plan))
    async with asyncio.timeout(PATIENCE_S):
        await frozen.asked.wait()
        task = round_.task
        round_.stop_sending()
        await asyncio.wait([task])
    assert task.cancelled()
    assert frozen.taken.empty()
    assert round_.plan is plan, "its averages are still taken"


async def test_reducers_that_open_together_are_served_in_parallel() -> None:
    """A regression: the second reducer's leaves waited until the first reducer had received its own."""
    round_, plan = a_round()
    round_.follow(plan, 0)
    links = {RELAY: Taking(frozen=True), OTHER_RELAY: Taking()}
    for peer in links:
        round_.serve(peer, opening(plan))
    sending = asyncio.create_task(contribute(round_, Links(links)))  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        assert isinstance(await links[OTHER_RELAY].taken.get(), m.Leaves)
    sending.cancel()
    await asyncio.wait([sending])


@pytest.mark.parametrize(("pace", "duration_s", "seconds"), [(0.0, 10.0, 0.0), (1.25, 10.0, 8.0), (1.25, 0.0, 0.0)])
async def test_it_goes_by_the_pace_of_its_plan(
    pace: float, duration_s: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pace depends on all the chunks still to be averaged, not on each reducer's share."""
    round_, plan = a_round()
    kept = tuple(replace(span, root="0" * 64) if span.reducer == OTHER_RELAY else span for span in plan.spans)
    paces = asyncio.Queue[float]()

    async def send_chunks(*_: object, pace: float, **__: object) -> None:
        paces.put_nowait(pace)

    monkeypatch.setattr(trainer_round, "send_chunks", send_chunks)
    for spans, part in ((plan.spans, 1.0), (kept, 0.5)):
        round_.follow(replace(plan, pace=pace, duration_s=duration_s, spans=spans), 0)
        sending = asyncio.create_task(contribute(round_, Links({RELAY: Taking()})))  # type: ignore[arg-type]
        round_.serve(RELAY, opening(plan))
        async with asyncio.timeout(PATIENCE_S):
            got = await paces.get()
        assert round_.sending is not None
        size = sum(map(len, round_.sending.payloads))
        assert got == pytest.approx(size / seconds if seconds else 0.0, rel=0.05), part
        sending.cancel()


def test_frames_before_their_plan_are_kept_up_to_a_bound() -> None:
    round_, plan = a_round()
    early = [frame(plan, 0, 0, 0, bytes(4096), Kind.AVERAGE) for _ in range(3 * GRID.chunks)]
    assert not any(round_.keep_chunk(each) for each in early)
    assert len(round_._early_frames) == GRID.chunks
    round_.follow(plan, 0)
    assert round_.assembly._leaves[0] is not None


def averages(plan: m.Plan, attempt: int = 1) -> list[Frame]:
    """Return all the averaged chunks of a plan, with payloads of zeros."""
    spans = {chunk: span.span for span in plan.spans for chunk in range(span.first, span.stop)}
    return [
        replace(frame(plan, spans[chunk], chunk, 0, bytes(4 * GRID.length(chunk)), Kind.AVERAGE), attempt=attempt)
        for chunk in GRID
    ]


def test_complete_averages_report_their_root_and_arrivals() -> None:
    round_, plan = a_round()
    assert round_.gathered() is None
    round_.follow(plan, 0)
    *most, last = averages(plan, plan.attempt)
    for each in most:
        assert round_.keep_chunk(each)
        assert not round_.keep_chunk(each), "the same again is not counted again"
    assert round_.gathered() is None
    round_.keep_chunk(last)
    gathered = round_.gathered()
    assert gathered is not None
    spans = sorted(plan.spans, key=lambda span: span.first)
    leaves = [leaf_of(bytes(4 * GRID.length(chunk)), 0.0) for chunk in GRID]
    assert gathered.holds == root_of([span_leaf(leaves[span.first : span.stop]) for span in spans])
    sizes = {arrival.sender: arrival.size for arrival in gathered.arrivals}
    assert sizes == {
        peer: sum(
            HEADER.size + 4 * GRID.length(chunk)
            for span in plan.spans
            if span.reducer == peer
            for chunk in range(span.first, span.stop)
        )
        for peer in (RELAY, OTHER_RELAY)
    }
    assert all(0 <= arrival.first_s <= arrival.last_s for arrival in gathered.arrivals)


def test_averages_are_taken_in_the_codec_that_the_plan_names() -> None:
    """Chunks that arrived before the plan count too. A record that names a different codec belongs to another round
    (rule 14).
    """
    sending = contributor(1, 100).offer("fp32")
    made = plan_of([sending], codec_down="int8")
    spans, payloads = averaged(made, [sending])
    round_, _ = a_round()
    early, *others = [frame(made, int(chunk >= 2), chunk, 0, payloads[chunk], Kind.AVERAGE) for chunk in GRID]
    assert not round_.keep_chunk(early)
    round_.follow(made, 0)
    assert all(round_.keep_chunk(each) for each in others)
    record = record_of(made, spans)
    assert round_.assembly.missing(record) == []
    assert round_.is_of(record)
    assert not round_.is_of(replace(record, codec="fp16"))


async def test_a_reducer_gets_what_it_has_not_and_nothing_twice() -> None:
    round_, plan = a_round()
    round_.follow(plan, 0)
    link = Taking()
    sending = asyncio.create_task(contribute(round_, Links({OTHER_RELAY: link})))  # type: ignore[arg-type]
    round_.serve(OTHER_RELAY, replace(opening(plan), received=(2, 4)))
    async with asyncio.timeout(PATIENCE_S):
        leaves, chunk = [await link.taken.get() for _ in range(2)]
    sending.cancel()
    await asyncio.wait([sending])
    assert isinstance(leaves, m.Leaves)
    assert isinstance(chunk, Frame)
    assert (chunk.chunk, link.taken.qsize()) == (3, 0)


@pytest.mark.parametrize(("change", "is_of"), [({}, True), ({"step": 1}, False), ({"fence": 9}, False)])
def test_averages_match_only_this_step_and_fence(change: dict[str, int], is_of: bool) -> None:
    round_, plan = a_round()
    record = record_of(plan, ())
    assert not round_.is_of(record), "before there is a plan"
    round_.follow(plan, 0)
    assert round_.is_of(replace(record, **change)) == is_of


async def test_a_plan_of_which_everything_is_held_has_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    round_, plan = a_round()
    paces = asyncio.Queue[float]()

    async def send_chunks(*_: object, pace: float, **__: object) -> None:
        paces.put_nowait(pace)

    monkeypatch.setattr(trainer_round, "send_chunks", send_chunks)
    held = tuple(replace(span, root=b"0" * 32) for span in plan.spans)
    round_.follow(replace(plan, pace=1.25, duration_s=10.0, spans=held), 0)
    sending = asyncio.create_task(contribute(round_, Links({RELAY: Taking()})))  # type: ignore[arg-type]
    round_.serve(RELAY, opening(plan))
    async with asyncio.timeout(PATIENCE_S):
        done, _ = await asyncio.wait({sending, asyncio.create_task(paces.get())}, return_when=asyncio.FIRST_COMPLETED)
    assert sending not in done
    assert [task.result() for task in done] == [0.0]
    sending.cancel()
