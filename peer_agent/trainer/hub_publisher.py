"""Publishes the model from the organizer's agent during training, as one commit on the Hub after each snapshot step. A
child process packs and uploads the files. Errors are shown but never stop the agent. During an upload, only the latest
snapshot is queued. While the Hub is unreachable, the agent retries the latest snapshot with backoff.
"""

import asyncio
import contextlib
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from peer_agent.display.lines import View
from peer_agent.machine.home import Home
from peer_agent.machine.language import gettext as _
from peer_agent.network.site import download, get_json
from peer_agent.protocol import messages as m
from peer_agent.protocol.errors import Fault, Problem, codes
from peer_agent.protocol.log.records import RecordHead
from peer_agent.protocol.recipe import Recipe, encode_recipe
from peer_agent.publishing.card import CardFacts, parse_facts, unfinished
from peer_agent.publishing.child import run_child
from peer_agent.publishing.hub_client import hub_endpoint
from peer_agent.site.credential import RunAccess
from peer_agent.trainer.files import TOKENIZER_LIMIT, fetch_shard

if TYPE_CHECKING:  # torch is loaded only for training
    from peer_agent.training.replica import Replica
    from peer_agent.training.snapshots import State

log = logging.getLogger(__name__)

LAST_S = 1800.0  # how long the last upload may take once the run is finished
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 600.0  # pauses before a retry, each twice as long as the last


class HubPublisher:
    """Publishes one run's snapshots to one repository on the Hub, reporting to `view`."""

    def __init__(self, home: Home, access: RunAccess, repository: str, token: str, view: View) -> None:
        self.home, self.access, self.repository, self.view = home, access, repository, view
        self.endpoint = hub_endpoint()
        self.shards: tuple[m.Shard, ...] = ()
        self.folder = home.cache / "publishing"
        self._token = token
        self._waiting: tuple[State, RecordHead, Replica] | None = None
        self._sending: asyncio.Task[None] | None = None

    async def committed(self, replica: "Replica", record: RecordHead) -> None:
        """Publish the replica in the background if this is a snapshot step or the run's last step. Return as soon as
        the state has been copied.
        """
        recipe = replica.recipe
        if record.step % recipe.snapshot_every and record.step < recipe.target_steps:
            return
        self._waiting = (await asyncio.to_thread(replica.copy_state), record, replica)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())

    async def finish(self) -> None:
        """Wait at most `LAST_S` seconds for the upload in progress."""
        if self._sending is not None and not self._sending.done():
            self.view.say(_("Uploading the last model to the Hub. Press Ctrl-C to leave without it."))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self._sending

    async def _send_all(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._waiting is not None:
            (state, record, replica), self._waiting = self._waiting, None
            try:
                url = await self._send(state, record, replica)
            except Problem as problem:
                self.view.began(Fault.of("E354", step=record.step, reason=problem))
                if problem.fault.code == codes.HUB_AWAY:
                    self._waiting = self._waiting or (state, record, replica)
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            except OSError as error:
                self.view.began(Fault.of("E354", step=record.step, reason=error.strerror or error))
            else:
                pause_s = FIRST_PAUSE_S
                self.view.ended(codes.NOT_PUBLISHED)
                words = _("The model of step {step} is on the Hub: {url}")
                self.view.say(words.format(step=f"{record.step:,}", url=url))

    async def _send(self, state: "State", record: RecordHead, replica: "Replica") -> str:
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        await self._fetch_data(replica.recipe)
        file = await asyncio.to_thread(state.save, self.folder / "state.safetensors")
        (self.folder / "recipe.json").write_bytes(encode_recipe(replica.recipe))
        facts = await self._facts(record, replica.recipe.target_steps)
        digests = {"log_digest": state.log_digest, "snapshot": file}
        (self.folder / "facts.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(facts, **digests)))
        made = await self._child()
        self._remember(made["commit"])
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)
        return str(made["url"])

    async def _facts(self, record: RecordHead, target_steps: int) -> CardFacts:
        """Fetch the facts for the model card at this step from the site. If that fails, return the few facts that this
        machine knows itself.
        """
        where = f"{self.access.site.url}/api/v1/runs/{self.access.slug}/facts?step={record.step}"
        try:
            await self.access.renew()
            facts = parse_facts(msgspec.json.encode(await get_json(where, headers=self.access.headers())))
        except Problem as problem:
            log.info("the card goes without what the site knows: %s", problem)
            address = f"{self.access.site.url}/runs/{self.access.slug}/"
            title = self.access.title or self.access.slug
            facts = CardFacts(slug=self.access.slug, title=title, address=address, steps=record.step, loss=record.loss)
        return facts if record.step == target_steps else unfinished(facts)

    async def _fetch_data(self, recipe: Recipe) -> None:
        if recipe.prepares.beside == "tokenizer":
            await self._fetch_tokenizer()
            return
        left = recipe.prepares.least_beside
        (self.folder / "shards").mkdir()
        for shard in sorted(self.shards, key=lambda shard: shard.digest):
            path = await fetch_shard(self.home, self.access, recipe, shard)
            await asyncio.to_thread(shutil.copyfile, path, self.folder / "shards" / path.name)
            left -= shard.tokens
            if left <= 0:
                return

    async def _fetch_tokenizer(self) -> None:
        await self.access.renew()
        where = f"{self.access.site.url}/api/v1/files/tokenizer"
        listed = await get_json(where, headers=self.access.headers())
        for file in listed["files"]:
            path = self.folder / "tokenizer" / Path(file["name"]).name
            await download(
                f"{where}/{path.name}",
                path,
                sha256=file["sha256"],
                size_limit=TOKENIZER_LIMIT,
                headers=self.access.headers(),
            )

    async def _child(self) -> dict[str, Any]:
        known = [f"--known={commit}"] if (commit := self._known().get(self.repository)) else []
        where = ("--endpoint", self.endpoint, "--repository", self.repository, *known)
        return await run_child(["hub-snapshot", str(self.folder), *where], secret=self._token)

    def _known(self) -> dict[str, str]:
        """Return the last commit that this machine made in each repository. A new commit may replace its files."""
        try:
            return msgspec.json.decode((self.home.folder / "published.json").read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError):
            return {}

    def _remember(self, commit: str) -> None:
        content = msgspec.json.encode({**self._known(), self.repository: commit})
        (self.home.folder / "published.json").write_bytes(content)


def hub_token() -> str:
    """Return this user's Hub token: HF_TOKEN, or the token saved by a Hub login. Raises Problem E353 if none exists."""
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise Problem.of("E353")
    return token
