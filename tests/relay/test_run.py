"""One run at a relay: nothing blocks event handling, and the relay hands over its remaining state when the run ends."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from peer_agent.averaging import update_log
from peer_agent.averaging.codecs import INLINE_BYTES
from peer_agent.averaging.update_log import UpdateLog
from peer_agent.network.link import LinkLost
from peer_agent.protocol import messages as m
from peer_agent.protocol import timing
from peer_agent.protocol.codec_sizes import encoded_size
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.grid import Grid
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.log.merkle import pack_leaves
from peer_agent.protocol.log.records import Entry, RecordHead, SpanEntry, to_lines
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay import run as relay_run
from peer_agent.relay.run import _compute
from tests.agent.scripted_site import (
    OTHER_RELAY,
    PATIENCE_S,
    RELAY,
    TRAINER,
    planned,
)
from tests.averaging.rounds import (
    RUN,
    averaged,
    contributor,
    entry_of,
    frames_of,
    plan_of,
    record_of,
)
from tests.protocol.identities import SITE_PUBLIC
from tests.relay.scenes import commit_of, greeting, heard, offers, plan, run_of_a_relay, settled


class Silent:
    """A data link whose other end reads nothing, or has just disconnected."""

    def __init__(self, *, is_lost: bool) -> None:
        self.is_lost = is_lost

    def allow(self, _: int) -> None:
        pass

    async def send(self, *_: object) -> None:
        if self.is_lost:
            raise LinkLost("gone")
        await asyncio.Event().wait()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_lost_or_blocked_contributor_holds_up_no_plan(tmp_path: Path, *, is_lost: bool) -> None:
    """A regression: an error or a full buffer on the contributor's link affected the control link."""
    run = run_of_a_relay(tmp_path, [])
    sendings = offers()
    run.links[PeerId(f"{0:032x}")] = Silent(is_lost=is_lost)  # type: ignore[assignment]
    async with asyncio.timeout(PATIENCE_S):
        await run.handle(heard(planned(plan(sendings))))
    assert run.reduction is not None
    await run.close()


async def test_a_new_host_has_voided_what_was_open(tmp_path: Path) -> None:
    run = run_of_a_relay(tmp_path, [])
    await run.handle(heard(planned(plan(offers()))))
    await run.handle(heard(greeting(fence=3, step=7)))
    assert run.reduction is not None  # the host is the same
    await run.handle(heard(greeting(fence=4, step=7)))
    assert run.outbox is None
    assert run.reduction is None
    await run.close()


async def test_slow_trainer_is_given_averages_after_the_commit(tmp_path: Path) -> None:
    run = run_of_a_relay(tmp_path, [])
    await run.handle(heard(planned(plan(offers()))))
    await run.handle(heard(greeting(fence=4, step=8)))
    assert run.reduction is None
    assert run.outbox is not None
    await run.close()


async def test_lost_branch_is_handed_in_by_pages_while_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page counts as given only if the site is still connected afterwards."""
    monkeypatch.setattr(relay_run, "HAND_IN_S", 0.01)
    monkeypatch.setattr(update_log, "PAGE", 2)
    said: list[m.Message] = []
    run = run_of_a_relay(tmp_path, said)
    attempt, sendings = plan(offers()), offers()
    records = [entry_of(record_of(attempt, averaged(attempt, sendings)[0], index=index)) for index in (1, 2, 3)]
    for index, record in enumerate(records, 1):
        write(tmp_path, f"{index:08d}-3.json", record)
    await run.handle(heard(greeting(fence=4, step=0)))
    run.state.joined = False  # the link is lost while the first page is on its way
    await settled(run)
    assert handed_in(said) == [tuple(records[:2])]
    await run.handle(heard(greeting(fence=4, step=0)))
    await settled(run)
    assert handed_in(said) == [tuple(records[:2]), tuple(records[:2]), tuple(records[2:])]
    await run.handle(heard(greeting(fence=4, step=0)))
    await settled(run)
    assert len(handed_in(said)) == 3, "once"
    await run.close()


def write(folder: Path, name: str, record: Entry) -> None:
    """Write a record of a replaced branch, as the log keeps it."""
    lost = UpdateLog(folder, SITE_PUBLIC)._at(RUN, "lost")
    lost.mkdir(parents=True, exist_ok=True)
    (lost / name).write_bytes(to_lines(record))


def handed_in(said: list[m.Message]) -> list[tuple[Entry, ...]]:
    return [message.records for message in said if isinstance(message, m.Records)]


async def test_spans_replanned_to_another_relay_are_given_out_no_more(tmp_path: Path) -> None:
    run, sendings = run_of_a_relay(tmp_path, []), offers()
    attempt = plan(sendings)
    await run.handle(heard(planned(attempt)))
    assert run.outbox is not None
    place = (attempt.run, attempt.step, attempt.fence, attempt.attempt)
    frames = [Frame(Kind.AVERAGE, *place, span.span, span.first, 0, b"average") for span in attempt.spans[:2]]
    for each in frames:
        run.outbox.publish(each)
    kept, dealt = attempt.spans[0], attempt.spans[1:]
    anew = tuple(replace(span, span=span.span + 10, attempt=2, reducer=OTHER_RELAY) for span in dealt)
    again = replace(attempt, attempt=2, spans=(replace(kept, root=b"r" * 32), *anew))
    await run.handle(heard(planned(again)))
    given: list[object] = []

    class Receiver(Silent):
        async def send(self, *bodies: object) -> None:
            given.extend(bodies)

    following = asyncio.create_task(run.outbox.follow(Receiver(is_lost=False)))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    assert given == frames[:1]
    following.cancel()
    await run.close()


async def test_outbox_expects_the_bytes_the_plan_gives_us_to_average(tmp_path: Path) -> None:
    run, attempt = run_of_a_relay(tmp_path, []), plan(offers())
    await run.handle(heard(planned(attempt)))
    chunks = sum(span.stop - span.first for span in attempt.spans if span.reducer == run.state.me)
    assert run.outbox is not None
    assert run.outbox.planned == chunks * encoded_size(attempt.codec_down, attempt.chunk_elements) > 0
    await run.close()


async def test_encoding_residual_is_kept_to_the_commit_or_lost_at_void(tmp_path: Path) -> None:
    """An encoding residual counts only for the spans that the record lists as averaged."""
    run, sendings = run_of_a_relay(tmp_path, []), offers()
    attempt = plan_of(sendings, codec_down="int4", reducers=(RELAY, OTHER_RELAY))
    spans, _ = averaged(attempt, sendings)
    for ends in (m.Void(run=RUN, step=7, fence=3, attempt=1, round=9, reason="a test"), None):
        made = replace(attempt, attempt=1 if ends else 2, spans=tuple(_of(attempt, 1 if ends else 2)))
        await run.handle(heard(planned(made)))
        assert run.reduction is not None
        for slot, sending in enumerate(sendings):
            assert run.reduction.leaves(slot, pack_leaves(sending.leaves)) is None
            for chunk in (0, 1):
                assert run.reduction.add(slot, chunk, sending.payloads[chunk]) is None
        for chunk in (0, 1):
            run.reduction.close(chunk, 201)
        assert len(run.residuals._open) == 2
        if ends is not None:
            await run.handle(heard(ends))
            assert (run.residuals._open, run.residuals._kept) == ({}, {})
    record = replace(record_of(made, spans), attempt=2)
    await run.handle(heard(commit_of(entry_of(record))))
    assert sorted(run.residuals._kept) == [0, 1]
    await settled(run)
    await run.close()


class Sender:
    """A data link that delivers `bodies`. `read` counts the bodies read so far, and `all_read` is set after the last
    one.
    """

    def __init__(self, *bodies: m.Message | Frame) -> None:
        self.bodies, self.read = list(bodies), 0
        self.all_read = asyncio.Event()

    def allow(self, _: int) -> None:
        pass

    def abort(self) -> None:
        pass

    async def send(self, *_: object) -> None:
        pass

    async def receive(self) -> m.Message | Frame:
        if self.read == len(self.bodies):
            self.all_read.set()
            await asyncio.Event().wait()
        self.read += 1
        return self.bodies[self.read - 1]


@pytest.mark.check
async def test_one_that_is_ahead_is_read_no_further_until_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data from a sender that is ahead would only wait, while taking bandwidth from slower senders."""
    monkeypatch.setattr(timing, "BATCH_BYTES", 1)
    grid = Grid(10 * 1024, 1024)
    run = run_of_a_relay(tmp_path, [], clock=time.monotonic)
    sendings = [contributor(seed, 100, grid).offer("fp32") for seed in (1, 2)]
    attempt = replace(plan_of(sendings, grid=grid, cuts=(0, 10), reducers=(RELAY,)), duration_s=60.0, sigma=0.5)
    await run.handle(heard(planned(attempt)))
    place: dict[str, Any] = {"run": RUN, "step": attempt.step, "fence": attempt.fence, "attempt": attempt.attempt}
    frames = [list(frames_of(attempt, slot, sending)) for slot, sending in enumerate(sendings)]
    first, second = (
        Sender(m.Leaves(**place, slot=slot, leaves=pack_leaves(sendings[slot].leaves)), *frames[slot][:count])
        for slot, count in ((0, 10), (1, 4))
    )
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        serving = [group.create_task(run.serve(PeerId(f"{1:032x}"), Role.TRAINER, second))]  # type: ignore[arg-type]
        await second.all_read.wait()
        serving.append(group.create_task(run.serve(PeerId(f"{0:032x}"), Role.TRAINER, first)))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        assert first.read == 1 + 7, "its leaves, as many as the other, two batches more, and the one that showed it"
        other = Sender(*second.bodies, frames[1][4])
        serving.append(group.create_task(run.serve(PeerId(f"{1:032x}"), Role.TRAINER, other)))  # type: ignore[arg-type]
        await asyncio.sleep(0.3)
        assert first.read == 1 + 8
        assert run.state.reducer is not None
        assert run.state.reducer.attempt is not None
        assert 0.4 < run.state.reducer.attempt.held_s[PeerId(f"{0:032x}")] < PATIENCE_S
        for task in serving:
            task.cancel()
    await run.close()


def _of(attempt: m.Plan, number: int) -> list[m.PlannedSpan]:
    return [replace(span, attempt=number) for span in attempt.spans]


async def test_what_a_relay_lacks_when_it_is_started_again_is_copied(tmp_path: Path) -> None:
    sendings = offers()
    attempt = plan_of(sendings, reducers=(OTHER_RELAY, OTHER_RELAY))
    spans, payloads = averaged(attempt, sendings)
    log = UpdateLog(tmp_path, SITE_PUBLIC)
    log.append(entry_of(record_of(attempt, spans)))
    asked: list[tuple[PeerId, int]] = []

    async def ask(peer: PeerId, _: RecordHead, entry: SpanEntry) -> list[bytes]:
        asked.append((peer, entry.span))
        whole = [payloads[chunk] for chunk in range(entry.first, entry.stop)]
        return whole if peer == TRAINER else [bytes(len(payload)) for payload in whole]

    run = run_of_a_relay(tmp_path, [], ask)
    others = tuple(m.Listener(peer=peer, url="") for peer in (OTHER_RELAY, TRAINER))
    await run.handle(heard(greeting(fence=3, step=8, listeners=others)))
    await settled(run)
    assert sorted(asked) == sorted((peer, span) for peer in (OTHER_RELAY, TRAINER) for span in (0, 1))
    assert UpdateLog(tmp_path, SITE_PUBLIC).missing(RUN, 1) == []
    await run.close()


@pytest.mark.parametrize(("size", "is_elsewhere"), [(INLINE_BYTES, False), (INLINE_BYTES + 1, True)])
async def test_much_arithmetic_is_done_in_a_thread(size: int, is_elsewhere: bool) -> None:
    assert INLINE_BYTES <= 256 * 1024
    assert (await _compute(size, threading.get_ident) != threading.get_ident()) == is_elsewhere
