"""A watch: one loop that loads a run's live page for all of this process's watchers in one language.

Each subscription gets the same text. While anyone is watching, the loop loads the page when a step is announced, or
about once a second. A slow subscription gets the whole page instead of changes, so as not to delay the others.
"""

import asyncio
import contextlib
import logging
from typing import Any
from uuid import UUID

from channels.layers import get_channel_layer
from django.db import DatabaseError

from config.metrics import FEED_LAG_S, WATCHERS
from coordination.channel_layer.messages import watchers_of
from coordination.threads import in_thread
from web.feed.live import BEAT, Live, change_message, look, whole_message
from web.run_picture.loading import ENGLISH

log = logging.getLogger(__name__)

LOOK_S = 1.0  # seconds between loads without an announcement
REST_S = 0.2  # minimum seconds between loads
RESTS = 3  # pause at least this many times as long as the load took, to spare the database on long runs
BEAT_S = 4.0  # seconds without a change before watchers get a beat; pages wait nine seconds for one
WAITING = 16  # messages queued for a slow socket


class Subscription:
    """A queue of messages for one watcher. None in the queue means that no more will follow."""

    def __init__(self, watch: "Watch") -> None:
        self.watch = watch
        self._waiting: asyncio.Queue[str | None] = asyncio.Queue(WAITING)

    async def next(self) -> str | None:
        return await self._waiting.get()

    def give(self, message: str) -> None:
        """Queue a change. If the queue is full, replace its contents with the whole page."""
        if self._waiting.full():
            self.give_whole()
        else:
            self._waiting.put_nowait(message)

    def give_whole(self) -> None:
        self._empty()
        if self.watch.live is not None:
            self._waiting.put_nowait(self.watch.whole())

    def beat(self) -> None:
        """Queue a beat, unless messages are waiting anyway."""
        if self._waiting.empty():
            self._waiting.put_nowait(BEAT)

    def end(self) -> None:
        self._empty()
        self._waiting.put_nowait(None)

    def _empty(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait()


class Watch:
    """One run as seen by all of this process's watchers in one language."""

    def __init__(self, run_id: UUID, language: str = ENGLISH) -> None:
        self.run_id = run_id
        self.language = language
        self.subscriptions: set[Subscription] = set()
        self.seq = 0
        self.live: Live | None = None
        self._whole = ""  # the page as one message, made when a subscription needs it
        self._moved = asyncio.Event()
        self._moved_at = 0.0  # when the first step since the last load was announced, by the clock below; 0 if none
        self._began = 0.0  # start of the last load, by the event loop's clock
        self._said = 0.0  # time of the last message or beat, by that clock

    def whole(self) -> str:
        """Return the whole page as a message, the same text for every subscription that needs it."""
        if not self._whole and self.live is not None:
            self._whole = whole_message(self.seq, self.live)
        return self._whole

    async def follow(self) -> None:
        """Load the page after each step or once a second, until cancelled or the watch ends."""
        layer: Any = get_channel_layer()
        channel: str = await layer.new_channel()
        group = watchers_of(self.run_id.hex)
        await layer.group_add(group, channel)
        ears = asyncio.create_task(self._listen(layer, channel))
        try:
            while await self._look():
                await self._rest(asyncio.get_running_loop().time() - self._began)
        finally:
            ears.cancel()
            await asyncio.wait([ears])
            await layer.group_discard(group, channel)

    async def _listen(self, layer: Any, channel: str) -> None:
        """Wait for announcements of steps. Canceling this task before the watch ends would lose the channel."""
        while True:
            await layer.receive(channel)
            self._moved_at = self._moved_at or asyncio.get_running_loop().time()
            self._moved.set()

    async def _rest(self, took_s: float) -> None:
        least = min(LOOK_S, max(REST_S, RESTS * took_s))
        await asyncio.sleep(least)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), LOOK_S - least)
        self._moved.clear()

    async def _look(self) -> bool:
        """Send the page's changes to all subscriptions. Return False if the run is gone or its visibility has changed.

        Without changes, send a beat now and then. While the database is down, send no beats, so that pages notice.
        """
        self._began = asyncio.get_running_loop().time()
        moved_at, self._moved_at = self._moved_at, 0.0
        try:
            found = await in_thread(look)(self.run_id, self.language, self.live)
        except DatabaseError:
            log.warning("the feed waits for the database", exc_info=True)
            self._moved_at = moved_at
            return True
        if found is None or (self.live and self.live.visibility != found.visibility):
            self._end()  # watchers reconnect and have their access checked again
            return False
        self._show(found)
        if moved_at:
            FEED_LAG_S.observe(asyncio.get_running_loop().time() - moved_at)
        return True

    def _show(self, found: Live) -> None:
        before, self.live = self.live, found
        now = asyncio.get_running_loop().time()
        if found is before:
            if now - self._said >= BEAT_S:
                self._said = now
                for subscription in self.subscriptions:
                    subscription.beat()
            return
        self._said = now
        self.seq += 1
        self._whole = ""
        message = change_message(self.seq, before, found) if before is not None else ""
        for subscription in self.subscriptions:
            if before is None:
                subscription.give_whole()
            else:
                subscription.give(message)

    def _end(self) -> None:
        for subscription in self.subscriptions:
            subscription.end()


_watches: dict[tuple[UUID, str], tuple[Watch, "asyncio.Task[None]"]] = {}  # by run and language


def subscribe(run_id: UUID, language: str = ENGLISH) -> Subscription:
    """Subscribe to a run in one of the site's languages. The first message is the whole page."""
    key = run_id, language
    if key not in _watches or _watches[key][1].done():
        watch = Watch(run_id, language)
        _watches[key] = watch, asyncio.create_task(watch.follow(), name=f"watch {run_id} {language}")
    subscription = Subscription(_watches[key][0])
    subscription.watch.subscriptions.add(subscription)
    WATCHERS.inc()
    subscription.give_whole()
    return subscription


async def unsubscribe(subscription: Subscription) -> None:
    """Remove a subscription. Removing the last one ends the watch."""
    watch = subscription.watch
    if subscription in watch.subscriptions:
        watch.subscriptions.discard(subscription)
        WATCHERS.dec()
    key = watch.run_id, watch.language
    known = _watches.get(key)
    if not watch.subscriptions and known is not None and known[0] is watch:
        del _watches[key]
        known[1].cancel()
        await asyncio.wait([known[1]])
