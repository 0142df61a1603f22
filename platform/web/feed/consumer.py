"""A watcher's WebSocket. It sends a subscription's messages and accepts only the word `again`, at a limited rate."""

import asyncio
import contextlib
import time
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from coordination.threads import in_thread
from runs.models import Run
from web.feed.admission import comes_from_here, counted_in, language_of, place_of, visible_run
from web.feed.live import AGAIN
from web.feed.watch import Subscription, subscribe, unsubscribe

ASK_S = 30.0  # seconds between checks that a watcher may still see a private run
RENEW_S = 1800.0  # the socket closes after this long, so that access is checked again
AGAIN_BURST, AGAIN_S = 5, 2.0  # whole pages per burst, and seconds until one more is allowed
OVER, NOT_UNDERSTOOD, RENEW = 4004, 1008, 4000


class WatcherConsumer(AsyncWebsocketConsumer):
    subscription: Subscription | None = None
    writing: "asyncio.Task[None] | None" = None
    minding: "asyncio.Task[None] | None" = None

    async def connect(self) -> None:
        """Accept the WebSocket if its watcher may see the run and has not opened too many.

        A page that the site refuses polls instead, and the response to its poll gives the reason.
        """
        self.held = contextlib.ExitStack()
        self.allowance, self.asked = float(AGAIN_BURST), time.monotonic()
        scope: Any = self.scope
        run = await in_thread(visible_run)(scope) if comes_from_here(scope) else None
        if run is None or not self.held.enter_context(counted_in(await in_thread(place_of)(scope))):
            self.held.close()
            await self.close()
            return
        await self.accept()
        self.subscription = subscribe(run.pk, language_of(scope))
        self.writing = asyncio.create_task(self._write(self.subscription))
        if run.visibility == Run.Visibility.PRIVATE:
            self.minding = asyncio.create_task(self._mind(self.subscription))

    async def _write(self, subscription: Subscription) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RENEW_S):
                while (message := await subscription.next()) is not None:
                    await self.send(text_data=message)
                await self.close(code=OVER)
                return
        await self.close(code=RENEW)

    async def _mind(self, subscription: Subscription) -> None:
        """End the subscription once its watcher has been removed or has logged out.

        Changing the run's visibility always ends the whole watch.
        """
        scope: Any = self.scope
        may_see = True
        while may_see:
            await asyncio.sleep(ASK_S)
            with contextlib.suppress(DatabaseError):  # while the database is down, the subscription waits too
                may_see = await in_thread(visible_run)(scope) is not None
        subscription.end()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Send the whole page if the message is `again`. Close the socket on any other message, or on too many."""
        del bytes_data
        if self.subscription is None or text_data != AGAIN or not self._is_allowed():
            await self.close(code=NOT_UNDERSTOOD)
        else:
            self.subscription.give_whole()

    def _is_allowed(self) -> bool:
        now = time.monotonic()
        self.allowance = min(AGAIN_BURST, self.allowance + (now - self.asked) / AGAIN_S) - 1
        self.asked = now
        return self.allowance >= 0

    async def disconnect(self, code: int) -> None:
        del code
        for task in (self.writing, self.minding):
            if task is not None:
                task.cancel()
        if self.subscription is not None:
            await unsubscribe(self.subscription)
        self.held.close()
