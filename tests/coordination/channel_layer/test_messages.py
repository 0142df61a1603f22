"""Messages between the site's processes. A message from another version is read, or dropped without affecting
others."""

from typing import Any, get_args

import msgspec
import pytest

from coordination.channel_layer.messages import (
    ChannelOverflowed,
    HostAnnounced,
    HostSaid,
    HostsFound,
    LayerMessage,
    LayerRestored,
    MachineRevoked,
    PeerLost,
    PeerSaid,
    RunMoved,
    SessionContested,
    SessionReplaced,
)
from coordination.channel_layer.process import HOST
from coordination.channel_layer.redis import Parcel, RedisLayer
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId, RunId

TEO, RUN = PeerId("0a" * 16), RunId("0b" * 16)
# The form that processes of version 0.2 write. Changing a name here would lose messages during an upgrade.
WRITTEN: list[tuple[LayerMessage, dict[str, Any]]] = [
    (
        PeerSaid(TEO, "a!1", b"hello", "Teo", "laptop", Role.RELAY),
        {
            "type": "peer.said", "peer": TEO, "channel": "a!1", "data": b"hello",
            "person": "Teo", "machine": "laptop", "role": "relay",
        },
    ),
    (PeerLost(TEO, "a!1"), {"type": "peer.lost", "peer": TEO, "channel": "a!1"}),
    (
        HostAnnounced(RUN, 3, "host.b!2", again=True),
        {"type": "host.announced", "run": RUN, "fence": 3, "channel": "host.b!2", "again": True},
    ),
    (HostSaid(b"plan", RUN), {"type": "host.said", "data": b"plan", "run": RUN}),
    (HostsFound([RUN]), {"type": "hosts.found", "runs": [RUN]}),
    (MachineRevoked("E371", 60.0), {"type": "machine.revoked", "code": "E371", "retry_after_s": 60.0}),
    (SessionReplaced("a!1"), {"type": "session.replaced", "by": "a!1"}),
    (SessionContested(), {"type": "session.contested"}),
    (LayerRestored(), {"type": "layer.restored"}),
    (ChannelOverflowed(), {"type": "channel.overflowed"}),
    (RunMoved(), {"type": "run.moved"}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "written"), WRITTEN, ids=lambda part: type(part).__name__)
def test_every_letter_is_written_and_read_by_its_names(message: LayerMessage, written: dict[str, Any]) -> None:
    assert msgspec.to_builtins(message, builtin_types=(bytes,)) == written
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=LayerMessage) == message


def test_no_letter_is_left_out_here() -> None:
    assert {type(message) for message, _ in WRITTEN} == set(get_args(LayerMessage))


@pytest.fixture
async def layer(monkeypatch: pytest.MonkeyPatch) -> RedisLayer:
    monkeypatch.setattr(RedisLayer, "_start", lambda _: None)
    found = RedisLayer(hosts=["redis://127.0.0.1:1/0"])
    found.is_up = False
    return found


@pytest.mark.parametrize(
    "message",
    [{"type": "host.sang"}, {"data": b""}, {"type": "peer.said", "peer": 3}, {"type": "peer.said", "role": "king"}, 7],
)
async def test_what_is_no_letter_is_lost_alone(layer: RedisLayer, message: object, caplog: Any) -> None:
    host = await layer.new_channel(HOST)
    await layer._deliver(msgspec.msgpack.encode(["other", [host], "", message]))
    assert "was not understood" in caplog.text
    await layer._deliver(msgspec.msgpack.encode(Parcel("other", [host], "", PeerLost(TEO, "a!1"))))
    assert await layer.receive(host) == PeerLost(TEO, "a!1")
