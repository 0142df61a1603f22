"""A trainer's agent: sockets, threads and messages around the state machine in `protocol.trainer`, called the core. The
core receives events in order and returns actions. Gradients, optimizer, encoding and files run in threads (`Jobs`).
Only `Follower` changes parameters, because a peer never takes an optimizer step on its own.
"""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, assert_never

from peer_agent.averaging.assembly import Assembly
from peer_agent.averaging.codecs import INLINE_BYTES
from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.language import translated
from peer_agent.machine.leave_request import FINISH_S
from peer_agent.network.link import Connected, Connection, LinkLost, Refused, Waiting, keep
from peer_agent.network.probing import Prober
from peer_agent.network.uplink import UPLINK
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.errors import Fault, Problem
from peer_agent.protocol.grid import grid_of
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.sealed import OpenedPlan, OpenedRecord
from peer_agent.protocol.trainer import events as e
from peer_agent.protocol.trainer.advance import advance, heard
from peer_agent.protocol.trainer.state import TrainerState, new_trainer
from peer_agent.protocol.wire import Frame, Kind
from peer_agent.relay.place import Place
from peer_agent.site.credential import RunAccess
from peer_agent.site.machine_control import MachineControl, Refusal
from peer_agent.site.relay_links import DataLinks
from peer_agent.trainer.jobs import Jobs
from peer_agent.trainer.listening import Listening
from peer_agent.trainer.round import OpenRound, contribute

if TYPE_CHECKING:  # torch is loaded only for training
    from peer_agent.trainer.hub_publisher import HubPublisher

LOOK_S = 0.05


log = logging.getLogger(__name__)

TICK_S = 0.25
LEAVE_S = 1.0  # longest wait while the last messages are sent to the site
MOST_WORDS = 1000  # Most messages queued for a slow link. Any more are dropped, and repeated later.


def _nothing() -> None:
    """Ignore a change, because no callback is set."""


class Agent:
    """One trainer. `run()` returns when the run is finished or this machine must leave."""

    def __init__(
        self, home: Home, access: RunAccess, owner: MachineControl, view: View, place: Place | None = None
    ) -> None:
        """Prepare an agent. `place`: where other peers can dial this machine, or None if they may not."""
        self.home, self.access, self.owner, self.view, self.place = home, access, owner, view, place
        self.links = DataLinks(access, self._hear_relay, self._reached, lambda: self.round is not None)
        self.prober = Prober(access.run, self.say)
        self.listening: Listening | None = None  # set if other peers may dial this machine
        self.control: Connection | None = None
        self.away: Fault | None = None  # why the control link is down; None while it is up or before the first attempt
        self.core = self._new_core()
        self.round: OpenRound | None = None
        self.jobs = Jobs(self)
        self.publisher: HubPublisher | None = None  # set if this agent publishes the model on the Hub
        self._is_credited = False
        self._words: asyncio.Queue[m.Message] = asyncio.Queue(MOST_WORDS)
        self._tasks: set[asyncio.Task[Any]] = set()

    def _new_core(self) -> TrainerState:
        core = new_trainer(self.access.run, self.access.peer, time.monotonic(), secrets.randbits(128))
        core.reserve_percent = self.owner.limits.reserve_percent
        return core

    async def run(self) -> None:
        """Join the run, train and leave. Raises Problem on a permanent error."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.access.renew()
        self.core = self._new_core()  # the core for the credential's run
        self.owner.on_change = self._obey
        self.prober = Prober(self.access.run, self.say)
        if self.place is not None:
            await self._listen(self.place)
        for part in (self._keep_control(), self._speak(), self.jobs.run(), self._beat()):
            self.start(part)
        try:
            await self._ended
        finally:
            self.owner.on_change = _nothing
            UPLINK.pace(0.0)
            await self._leave()

    def _obey(self) -> None:
        """Apply the owner's changed limits and instructions. If the machine must pause, leave the run at once. If it
        must finish or move to another run, leave after the current step.
        """
        self.jobs.take_limits(self.owner.limits)
        if self.owner.rest:
            self._end()
        elif (self.owner.is_to_finish or self.owner.move_to) and not self.view.is_leaving:
            self.finish()

    def finish(self) -> None:
        self.start(self._finish())

    async def _finish(self) -> None:
        await finish_step(self)
        self._end()

    def _end(self, error: BaseException | None = None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def start(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background. If it fails, the agent ends with its error."""
        task = asyncio.create_task(part)
        self._tasks.add(task)
        task.add_done_callback(self._stopped)
        return task

    def _stopped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)

    async def _leave(self) -> None:
        self.handle(e.Left())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._words.join()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self.prober.close()
        if self.listening is not None:
            await self.listening.close()
        self.jobs.close()
        await asyncio.gather(*tasks, self.links.close(), return_exceptions=True)

    # --- listening ----------------------------------------------------------------------------------------------

    async def _listen(self, place: Place) -> None:
        self.listening = Listening(self.access, self.links, self.say, self._stop_listening)
        await self.listening.open(place)
        self.core.url, self.core.fingerprint = self.listening.url, self.listening.fingerprint

    def _stop_listening(self, error: BaseException) -> None:
        """Stop reducing after an error. Report this to the coordinator, and keep training."""
        listening, self.listening = self.listening, None
        if listening is None:
            return
        log.error("this machine reduces for nobody any more", exc_info=error)
        self.handle(e.Unlistened())
        self.start(listening.close())

    def _reached(self) -> None:
        self.handle(e.Reached(tuple(sorted(self.links.direct - {self.access.peer}))))

    # --- events -------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event) -> None:
        """Pass an event to the core, and carry out the resulting actions in order."""
        for action in advance(self.core, event, time.monotonic(), secrets.randbits(128)):
            self._carry(action)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.handle(e.Ticked())

    async def _keep_control(self) -> None:
        def told(state: Connected | Waiting) -> None:
            self.away = state.fault if isinstance(state, Waiting) else None
            if isinstance(state, Waiting):
                log.info("%s; trying again in %.0f s", state.fault, state.delay_s)

        await keep(self.access.dial_control, self._hear_site, on_state=told, random=Random())

    async def _hear_site(self, link: Connection) -> None:
        self._forget_words()
        self.control = link
        self.handle(e.Linked())
        self.owner.linked(self.access.run, self.say)
        try:
            while True:
                body = await link.receive()
                if isinstance(body, m.Instructions):
                    self.owner.hear(body)
                    continue
                if isinstance(body, m.Probe) and body.begins:
                    self.prober.hear(body, self.links.open.get(body.partner))
                if isinstance(body, m.Audit):
                    self.jobs.add(self.jobs.audit, body)
                if isinstance(body, m.Uplink):
                    UPLINK.pace(body.bytes_per_s)
                if self.listening is not None:
                    self.listening.hear(body)  # type: ignore[arg-type] # the session accepts no other message
                self.handle(heard(body, self.access.site_key, self.access.peer))  # type: ignore[arg-type]
        finally:
            self.control = None
            self.owner.unlinked()
            if self.listening is not None:
                self.listening.lose_control()

    async def _hear_relay(self, peer: PeerId, body: m.AnyMessage | Frame) -> None:
        round_ = self.round
        match body:
            case Frame(kind=Kind.PROBE):
                self.prober.frame_came(peer, body)
            case Frame():
                await self._hear_average(peer, body, round_)
            case m.Open():
                self.handle(e.OpenHeard(peer, body))
            case m.SlotRefused():
                self._hear_refusal(peer, body, round_)

    def _hear_refusal(self, peer: PeerId, body: m.SlotRefused, round_: OpenRound | None) -> None:
        """Tell the user that a relay or another member refused this machine's contribution. Count the refusal only
        while its round is open. Otherwise, a peer could send the same refusal again and again.
        """
        fault = Fault.of("E141", chunk=body.chunk, reason=body.code)
        self.view.fault(fault)
        link = self.links.open.get(peer)
        if round_ is not None and (body.step, body.fence) == (round_.cut.step, round_.cut.fence):
            is_relays = link is not None and link.credential is not None and link.credential.role is Role.RELAY
            self.owner.refused(Refusal(body.step, peer, is_relays, fault.text))

    async def _hear_average(self, peer: PeerId, body: Frame, round_: OpenRound | None) -> None:
        if self.listening is not None:
            await self.listening.hear_average(peer, body)
        if round_ is None:
            return
        large = len(body.payload) > INLINE_BYTES
        if await asyncio.to_thread(round_.keep_chunk, body) if large else round_.keep_chunk(body):
            await self._arrived(round_)

    async def _arrived(self, round_: OpenRound) -> None:
        """Handle a new averaged chunk or plan. Once all of the round's averages have arrived, tell the core, although
        some of them may still turn out to be wrong.
        """
        round_.arrived.set()
        gathered = round_.gathered()
        if gathered is not None and round_ is self.round:
            self.handle(gathered)

    # --- actions ------------------------------------------------------------------------------------------------

    def _carry(self, action: e.Action) -> None:
        match action:
            case e.Say():
                self.say(action.message)
            case e.Tell() | e.Warn() | e.Began() | e.Ended() | e.Show() | e.Quit():
                self._tell(action)
            case e.Dial():
                self.links.follow(action.listeners)
            case e.Freeze() | e.Hold() | e.Send() | e.Serve() | e.StopSending() | e.Release() | e.Settle():
                self._carry_round(action)
            case e.Made():
                self._made(action.record)
            case _:
                self._carry_job(action)

    def _carry_job(
        self,
        action: e.Load | e.Apply | e.Compute | e.Keep | e.Discard | e.DiscardHeld | e.Renew | e.HandIn | e.HashState,
    ) -> None:
        match action:
            case e.Load():
                self.jobs.add(self.jobs.load, action)
            case e.Apply():
                self.start(self.jobs.fetch(action, self.round))
            case e.Compute():
                self.jobs.add(self.jobs.compute, action)
            case e.Keep() | e.Discard() | e.DiscardHeld() | e.Renew():
                self.jobs.add(self.jobs.change, action)
            case e.HandIn():
                self.jobs.add(self.jobs.hand_in)
            case e.HashState():
                self.jobs.add(self.jobs.hash_state)
            case _:
                assert_never(action)

    def _carry_round(self, action: e.Freeze | e.Hold | e.Send | e.Serve | e.StopSending | e.Release | e.Settle) -> None:
        match action:
            case e.Freeze():
                self.jobs.add(self.jobs.freeze, action, self._open_round(action.cut))
            case e.Hold():
                self._open_round(action.cut)
                self.jobs.add(self.jobs.change, action)
            case e.Send():
                self._follow(self._round_of(action.plan.plan), action.plan)
            case e.Serve() if self.round is not None:
                self.round.serve(action.peer, action.message)
            case e.StopSending() if self.round is not None:
                self.round.stop_sending()
            case e.Release() | e.Settle():
                self._end_round()
                self.jobs.add(self.jobs.change, action)

    def _round_of(self, plan: m.PlanHead) -> OpenRound:
        """Return a plan's open round. If there is none, open a round that only receives averages."""
        is_its = self.round is not None and (self.round.cut.step, self.round.cut.fence) == (plan.step, plan.fence)
        return self.round if self.round is not None and is_its else self._open_round(plan)

    def _open_round(self, cut: m.Cut | m.SitOut | m.PlanHead) -> OpenRound:
        greeting, recipe = self.core.greeting, self.core.recipe
        assert greeting is not None
        assert recipe is not None
        self.round = OpenRound(cut, Assembly(grid_of(greeting.elements), recipe.codec_down))
        return self.round

    def _end_round(self) -> None:
        if self.round is not None:
            self.round.stop()
        self.round = None

    def _follow(self, round_: OpenRound, plan: OpenedPlan) -> None:
        slot = self.core.round.slot if self.core.round is not None else None
        round_.follow(plan.plan, slot)
        if slot is not None:
            round_.task = self.start(contribute(round_, self.links))
        self.start(self._arrived(round_))  # all averages may be here, if the plan keeps them or they came early

    def say(self, message: m.Message) -> None:
        """Queue a message to the coordinator, or drop it if the queue is full. Messages are also dropped while the link
        is down. The next hello makes up for dropped messages.
        """
        with contextlib.suppress(asyncio.QueueFull):
            self._words.put_nowait(message)
        if isinstance(message, m.Report) and self.jobs.accumulation is not None:
            self.view.progress(message.step, self.core.samples, self.jobs.accumulation.speed)

    async def _speak(self) -> None:
        while True:
            message = await self._words.get()
            if self.control is not None:
                with contextlib.suppress(LinkLost, Refused):
                    await self.control.send(message)
            self._words.task_done()

    def _forget_words(self) -> None:
        while not self._words.empty():
            self._words.get_nowait()
            self._words.task_done()

    def _tell(self, action: e.Tell | e.Warn | e.Began | e.Ended | e.Show | e.Quit) -> None:
        match action:
            case e.Tell():
                self.view.say(translated(action.message).format(**action.details))
            case e.Warn():
                self.view.fault(action.fault)
            case e.Began():
                self.view.began(action.fault)
            case e.Ended():
                self.view.ended(*action.codes)
            case e.Show():
                self.view.state(action.state, action.reason)
            case e.Quit():
                self._end(None if action.fault is None else Problem(action.fault))
            case _:
                assert_never(action)

    def _made(self, made: OpenedRecord) -> None:
        record = made.record
        if self.round is not None and self.round.cut.step < record.step:
            self._end_round()  # this round's update does not include this machine
        self.view.step(record, made.own)
        if made.own is not None:
            self.owner.accepted()
            self._credit(record.step, made.own.samples)
        log.info("step %s: state %s", record.step, self.core.digest)
        self.jobs.add(self.jobs.publish, record)

    def _credit(self, step: int, samples: int) -> None:
        """Tell the user if this is the first time that this machine is credited in the run. Credits from earlier
        processes of the agent count as well.
        """
        if samples and not self._is_credited:
            self._is_credited = True
            if self.home.is_first_credit(self.access.run):
                self.view.first_credit(step, samples)


async def finish_step(agent: "Agent") -> None:
    """If this machine has work in the current step, wait until the step is committed, for at most `FINISH_S` seconds.
    Until then, the machine stays in the round, because other machines count on it.
    """
    if not agent.core.has_state or not _has_something(agent):
        return
    step, until = agent.core.step, time.monotonic() + FINISH_S
    agent.view.leaves(step)
    while agent.view.made <= step and _has_something(agent) and time.monotonic() < until:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)  # several events may end the wait, so poll


def _has_something(agent: "Agent") -> bool:
    """Return True if the run is training and this machine has work: an open round, finished samples or a unit."""
    core = agent.core
    if agent.control is None or not agent.view.is_moving:
        return False
    return core.round is not None or bool(core.done or core.in_hand)
