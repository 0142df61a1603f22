"""Bandwidth measurements on idle links. One end sends for a while, and the other reports what arrived."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from peer_agent.network.link import Connection, LinkLost, Refused
from peer_agent.network.uplink import UPLINK, Bucket
from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.probing import (
    FRAME_BYTES,
    LAST,
    MOST_BYTES,
    PROBE_S,
    Probes,
    expect,
    frame_came,
    is_expected,
)
from peer_agent.protocol.identifiers import PeerId, RunId
from peer_agent.protocol.wire import HEADER, Frame, Kind

HEARD_S = 0.5  # time for the other end to learn of the probe, because an unexpected frame would end the link
FENCE = 1  # the fence in probe frames, never used in the log
MESSAGE_BYTES = HEADER.size + FRAME_BYTES
PAYLOAD = bytes(FRAME_BYTES)


class Prober:
    """One machine's bandwidth measurements in one run. `say` sends a message to the coordinator."""

    def __init__(
        self, run: RunId, say: Callable[[m.TO_SITE], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.run, self._say, self._clock = run, say, clock
        self._probes = Probes()
        self._sending: set[asyncio.Task[None]] = set()
        # By probe number: the link on which to answer once the peer has sent everything.
        self._answers: dict[int, Connection] = {}

    def hear(self, probe: m.Probe, link: Connection | None) -> None:
        """Prepare a measurement on `link`, as the coordinator requests. The end that dialed the link sends first.

        Ignore the request if there is no link, or if a relay forwards it.
        """
        if link is None or not link.is_direct:
            return
        expect(self._probes, probe, self._clock())
        link.allow(MESSAGE_BYTES)
        if probe.begins:
            self._start(link, probe.number, m.Probing(run=self.run, number=probe.number))

    def begun(self, peer: PeerId, probing: m.Probing, link: Connection) -> None:
        """Prepare to send on `link` once the peer has finished sending.

        If both ends sent at once, acknowledgements would be delayed.
        """
        if is_expected(self._probes, peer, probing.number, self._clock()):
            self._answers = {number: to for number, to in self._answers.items() if number in self._probes.open}
            self._answers[probing.number] = link

    def frame_came(self, peer: PeerId, frame: Frame) -> None:
        now = self._clock()
        is_last = frame.slot == LAST and is_expected(self._probes, peer, frame.step, now)
        came = frame_came(self._probes, peer, frame, now)
        if is_last and (link := self._answers.pop(frame.step, None)) is not None:
            self._start(link, frame.step, None)
        if came is not None:
            size, seconds = came
            self._say(m.Probed(run=self.run, number=frame.step, size=size, seconds=seconds))

    def close(self) -> None:
        for task in self._sending:
            task.cancel()

    def _start(self, link: Connection, number: int, first: m.Probing | None) -> None:
        task = asyncio.create_task(self._send(link, number, first))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send(self, link: Connection, number: int, first: m.Probing | None) -> None:
        with suppress(LinkLost, Refused):  # the link's reader handles the error
            if first is not None:
                await asyncio.sleep(HEARD_S)
                await link.send(first)
            await self._send_evenly(link, number)
            await link.send(self._frame(number, b"", slot=LAST))

    async def _send_evenly(self, link: Connection, number: int) -> None:
        """Send up to `MOST_BYTES` at an even rate. A burst would arrive before the peer starts counting."""
        bucket, until = Bucket(), self._clock() + PROBE_S
        bucket.pace(MOST_BYTES / PROBE_S, self._clock())
        while (now := self._clock()) < until:
            if bucket.free_at() > now:
                await asyncio.sleep(bucket.free_at() - now)
                continue
            bucket.take(FRAME_BYTES, now)
            await UPLINK.unpaced(FRAME_BYTES)
            await link.send(self._frame(number, PAYLOAD))

    def _frame(self, number: int, payload: bytes, slot: int = 0) -> Frame:
        return Frame(Kind.PROBE, self.run, number, FENCE, 0, 0, 0, slot, payload)
