"""An example round as pages show it: senders, the bottleneck, an averaging relay, and link rates."""

from typing import Any

import msgspec

from coordination.models import Presence
from coordination.presence import Link
from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.plan import Bottleneck, Kind, Outline, Participant
from peer_agent.protocol.plan.outline import Averager
from runs.models import Run


def outline(teo: PeerId, relay: PeerId, **changes: Any) -> Outline:
    """Return a plan's outline in which Teo's laptop and another machine send to a relay. Teo's upload is the
    bottleneck."""
    sender = Participant("Teo", "laptop", teo, "trainer")
    server = Participant("Ines", "srv-17.example.org", relay, "relay")
    facts: dict[str, Any] = {
        "step": 5, "planned_s": 2.0, "senders": (sender,), "other_senders": 1, "averagers": (Averager(server, 1.0),),
        "other_averagers": 0, "other_part": 0.0, "bottlenecks": (Bottleneck(Kind.UP, (sender,), 1.0),),
        "began_at": 7.0, "took_s": 2.5,
    }  # fmt: skip
    return Outline(**{**facts, **changes})


def shown(run: Run, plan: Outline, links: dict[PeerId, Link]) -> None:
    members = [
        {"peer": peer, "name": "Teo", "role": link.role, "state": "ready", "done": 1, "samples_per_s": 2.0}
        for peer, link in links.items()
    ]
    facts = {"plan": msgspec.to_builtins(plan), "links": msgspec.to_builtins(links)}
    Presence.objects.create(run=run, phase="accumulate", done=1, target=4, members=members, **facts)
