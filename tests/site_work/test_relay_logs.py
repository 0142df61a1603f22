"""The replay gets averaged bytes from any relay over real links and checks their root. If a relay fails or lies, the
replay asks the next one.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.averaging.update_log import UpdateLog, read_span
from peer_agent.network.link import Connection
from peer_agent.network.relay_server import Server, serve_data
from peer_agent.protocol import messages as m
from peer_agent.protocol.credentials import Credential, Role, Signed, issue, public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import ANY_RUN, PeerId
from peer_agent.protocol.log.records import from_lines
from peer_agent.protocol.session import Identity
from peer_agent.protocol.wire import LOGGED, Frame, Kind
from peer_agent.relay.run import Around, RelayedRun
from peer_agent.site_work import relay_logs
from peer_agent.site_work.relay_logs import Reach, RelayLogs, write_reach
from peer_agent.site_work.replay import Logs, Replayed, replay
from tests.site_work.test_replay import STEPS, Story
from tests.training.commits import RUN, SITE_KEY, small_recipe

READER = PeerId("dd" * 16)
PATIENCE_S = 60.0
Handle = Callable[[Connection], Awaitable[None]]


def credential(key: Ed25519PrivateKey, peer: PeerId, role: Role, *, age_s: int = 0) -> Signed:
    now = int(time.time()) - age_s
    run = ANY_RUN if role is Role.RELAY else RUN
    facts = {"person": "operator", "machine": peer, "run": run, "role": role, "key": public_bytes(key)}
    return issue(SITE_KEY, Credential(**facts, not_before=now, expires=now + 3600))  # type: ignore[arg-type]


class Relays:
    """Relays in their own thread, because the replay has no event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.servers: list[Server] = []
        self.listeners: tuple[m.Listener, ...] = ()
        self.asked: list[tuple[int, object]] = []  # (relay, request)

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def add(self, handle: Handle) -> None:
        number, key = len(self.servers), Ed25519PrivateKey.generate()
        peer = PeerId(f"{number + 1:032x}")
        identity = Identity(peer, key, credential(key, peer, Role.RELAY), public_bytes(SITE_KEY))
        server = self.wait(
            serve_data("127.0.0.1", 0, identity_of=lambda: identity, handle=handle, admit=lambda _: None)
        )
        self.servers.append(server)
        self.listeners += (m.Listener(peer=peer, url=f"ws://127.0.0.1:{server.port}/"),)

    def close(self) -> None:
        for server in self.servers:
            self.wait(server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE_S)
        self.loop.close()

    def honest(self, story: Story, folder: Path) -> Handle:
        """Return a handler that serves the story's log with a relay's own code."""
        log = UpdateLog(folder, public_bytes(SITE_KEY))
        for index in range(1, STEPS + 1):
            log.append(from_lines((story.records / f"{index:012d}.json").read_bytes()))
            span = read_span(story.span(index))
            assert span is not None
            log.store(RUN, index, 0, span.payloads)

        around = Around(nothing, nothing, nothing, nothing)
        run = RelayedRun(RUN, PeerId("1" * 32), log, around)

        async def give(link: Connection, wanted: m.FetchSpan) -> None:
            await run.give_span(link, wanted.index, wanted.span)

        return self.answering(give)

    def answering(self, give: Callable[[Connection, Any], Awaitable[None]]) -> Handle:
        number = len(self.servers)

        async def serve(link: Connection) -> None:
            while True:
                wanted = await link.receive()
                self.asked.append((number, wanted))
                await give(link, wanted)

        return serve


def nothing(*_: Any) -> Any:
    pass


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def replayed(story: Story, relays: Relays, *, age_s: int = 0) -> Replayed:
    """Replay the story's log. The averages are not on the local disk, so the relays must send them."""
    key = Ed25519PrivateKey.generate()
    reach = story.folder / "reach"
    signed = credential(key, READER, Role.READER, age_s=age_s)
    write_reach(reach, Reach(run=RUN, peer=READER, credential=signed, relays=relays.listeners))
    with RelayLogs(reach, key, public_bytes(SITE_KEY)) as logs:
        return replay(
            recipe=small_recipe(),
            snapshot=story.folder / "snapshot.safetensors",
            records=story.records,
            logs=Logs((), logs),
            site_key=public_bytes(SITE_KEY),
            out=story.folder / "out",
        )


async def has_nothing(link: Connection, wanted: Any) -> None:
    await link.send(m.SpanMissing(run=wanted.run, index=wanted.index, span=wanted.span))


async def hangs_up(link: Connection, wanted: Any) -> None:
    await link.close()


def lying(story: Story) -> Callable[[Connection, Any], Awaitable[None]]:
    """Return a handler whose chunks have the right length and position, but one changed bit each."""

    async def give(link: Connection, wanted: Any) -> None:
        span = read_span(story.span(wanted.index))
        assert span is not None
        for chunk, payload in enumerate(span.payloads):
            wrong = bytes([payload[0] ^ 1]) + bytes(payload[1:])
            await link.send(Frame(Kind.AVERAGE, RUN, wanted.index, LOGGED, 0, 0, chunk, 0, wrong))

    return give


def too_long(story: Story) -> Callable[[Connection, Any], Awaitable[None]]:
    async def give(link: Connection, wanted: Any) -> None:
        for _ in range(2 * relay_logs.OTHERS):
            await link.send(Frame(Kind.AVERAGE, RUN, wanted.index, LOGGED, 0, 0, 0, 0, bytes(100_000)))

    return give


def test_a_log_that_lies_elsewhere_is_replayed(story: Story, relays: Relays, tmp_path: Path) -> None:
    relays.add(relays.honest(story, tmp_path / "relay"))
    made = replayed(story, relays)
    assert (made.file, made.step) == (story.replica.state_hash()[0], STEPS)
    assert [wanted.index for _, wanted in relays.asked if isinstance(wanted, m.FetchSpan)] == [1, 2, 3]


@pytest.mark.parametrize("first", ["nothing", "lies", "hangs up", "too long"])
def test_next_relay_is_asked_and_the_failing_one_becomes_last(
    story: Story, relays: Relays, tmp_path: Path, first: str
) -> None:
    ways = {"nothing": has_nothing, "lies": lying(story), "hangs up": hangs_up, "too long": too_long(story)}
    relays.add(relays.answering(ways[first]))
    relays.add(relays.honest(story, tmp_path / "relay"))
    assert replayed(story, relays).file == story.replica.state_hash()[0]
    assert [number for number, _ in relays.asked] == [0, 1, 1, 1]


def test_where_all_lie_the_bytes_are_nowhere(story: Story, relays: Relays) -> None:
    relays.add(relays.answering(lying(story)))
    with pytest.raises(Problem, match=r"E341: .* step 1\."):
        replayed(story, relays)


def test_a_frozen_relay_is_waited_for_and_left(
    story: Story, relays: Relays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def freeze(link: Connection, wanted: Any) -> None:
        await asyncio.Event().wait()

    patience = [0.1]  # seconds for the first relay; on a busy machine the others may take longer
    monkeypatch.setattr(relay_logs, "patience_s", lambda _: patience.pop() if patience else PATIENCE_S)
    relays.add(relays.answering(freeze))
    relays.add(relays.honest(story, tmp_path / "relay"))
    assert replayed(story, relays).step == STEPS


def test_a_link_that_ended_meanwhile_is_dialled_again(story: Story, relays: Relays, tmp_path: Path) -> None:
    """During a long replay the credential expires. By then the site has written a new one."""
    honest = relays.honest(story, tmp_path / "relay")
    times: list[Connection] = []

    async def once(link: Connection) -> None:
        times.append(link)
        if len(times) > 1:
            await honest(link)
        wanted = await link.receive()
        log = UpdateLog(tmp_path / "relay", public_bytes(SITE_KEY))
        span = log.span(RUN, wanted.index, wanted.span)  # type: ignore[union-attr]
        assert span is not None
        for chunk, payload in enumerate(span.payloads):
            await link.send(Frame(Kind.AVERAGE, RUN, 1, LOGGED, 0, 0, chunk, 0, payload))

    relays.add(once)
    assert replayed(story, relays).step == STEPS
    assert len(times) == 2


def test_a_credential_that_has_run_out_opens_nothing(story: Story, relays: Relays, tmp_path: Path) -> None:
    relays.add(relays.honest(story, tmp_path / "relay"))
    with pytest.raises(Problem, match="E341"):
        replayed(story, relays, age_s=2 * 3600)
    assert relays.asked == []
