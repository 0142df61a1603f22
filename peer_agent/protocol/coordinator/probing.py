"""Measure idle links between rounds (rule 31). Each machine begins a few probes and takes part in one at a time."""

import math
from collections.abc import Iterator
from functools import partial

from peer_agent.protocol import messages as m
from peer_agent.protocol.bandwidth.flows import FASTER, WAYS, Flow
from peer_agent.protocol.bandwidth.learning import learn_probe
from peer_agent.protocol.bandwidth.links import Probe, Probed
from peer_agent.protocol.bandwidth.probing import EXPECTED_S, LEAST_S, PROBE_BPS
from peer_agent.protocol.coordinator.events import Command, Send
from peer_agent.protocol.coordinator.state import Member, Phase, RunState
from peer_agent.protocol.credentials import Role
from peer_agent.protocol.identifiers import PeerId

MOST_PROBES = 5  # maximum probes begun by one machine under one host, over all its sessions
IDLE_UNTIL = 0.7  # fraction of the batch beyond which the next round is too near for probes


def probe(state: RunState) -> list[Command]:
    """Begin any link probes that are possible now. Called on clock ticks."""
    for number in [number for number, each in state.links.probes.items() if state.now - each.begun_at >= EXPECTED_S]:
        del state.links.probes[number]
    if state.phase is not Phase.ACCUMULATE or state.awake_samples >= IDLE_UNTIL * state.recipe.target_batch:
        return []
    return [command for member, listener in _pairs(state) for command in _begin(state, member, listener)]


def _pairs(state: RunState) -> Iterator[tuple[Member, Member]]:
    """Yield each member whose link needs a probe, along with a listener that is in no other probe."""
    busy = {peer for each in state.links.probes.values() for peer in (each.member, each.listener)}
    listeners = [p for p in state.listening.values() if p.measures and p.peer not in busy]
    for member in state.ready():
        if not listeners:
            return
        if member.peer in busy or _probed(state, member).begun >= MOST_PROBES or not _is_to_be_measured(state, member):
            continue
        able = [
            p for p in listeners if p.peer in member.reaches and p is not member and _may_show_more(state, member, p)
        ]
        if able:
            found = max(able, key=partial(_worth, state, member))
            busy |= {member.peer, found.peer}
            listeners = [p for p in listeners if p.peer not in busy]
            yield member, found


def _worth(state: RunState, member: Member, listener: Member) -> tuple[bool, int, bool]:
    """Rank a listener for a probe: first those not yet measured with this member, then fast ones, then relays."""
    bps = _least_bps(state, listener)
    steps = math.floor(math.log(bps, FASTER)) if bps else 0
    return listener.peer not in _probed(state, member).partners, steps, listener.role is Role.RELAY


def _may_show_more(state: RunState, member: Member, listener: Member) -> bool:
    """Return True if a probe between the two may raise a speed estimate.

    Two peers of similar speed are measured together only once.
    """
    mine, other = _least_bps(state, member), _least_bps(state, listener)
    if not _probed(state, member).begun or other >= FASTER * mine:
        return True
    is_new = listener.peer not in _probed(state, member).partners
    return is_new and FASTER * other >= mine and _is_to_be_measured(state, listener)


def _least_bps(state: RunState, member: Member) -> float:
    known = (state.links.capacities.get((member.peer, way)) for way in WAYS)
    return min(capacity.bps if capacity is not None else 0.0 for capacity in known)


def _is_to_be_measured(state: RunState, member: Member) -> bool:
    known = (state.links.capacities.get((member.peer, way)) for way in WAYS)
    return any(capacity is None or capacity.is_floor for capacity in known)


def _begin(state: RunState, member: Member, listener: Member) -> list[Command]:
    state.links.probe_number += 1
    state.links.probed.setdefault(member.peer, Probed()).begun += 1
    state.links.probes[state.links.probe_number] = Probe(member.peer, listener.peer, state.now, state.rounds)
    return [
        Send((mine.peer,), m.Probe(run=state.run, number=state.links.probe_number, partner=other.peer, begins=begins))
        for mine, other, begins in ((listener, member, False), (member, listener, True))
    ]


def take_probed(state: RunState, member: Member, probed: m.Probed) -> list[Command]:
    """Process one end's probe result. Ignore repeated or implausible results, and probes interrupted by a round."""
    found = state.links.probes.get(probed.number)
    if found is None or member.peer not in (found.member, found.listener) or member.peer in found.told:
        return []
    found.told.add(member.peer)
    was_idle = state.phase is Phase.ACCUMULATE and state.rounds == found.rounds
    if was_idle and LEAST_S <= probed.seconds <= state.now - found.begun_at:
        other = found.listener if member.peer == found.member else found.member
        _remember(state, member.peer, other)
        _remember(state, other, member.peer)
        size = min(probed.size, int(PROBE_BPS * probed.seconds))  # no peer sends a probe faster than this
        learn_probe(state.links.capacities, Flow(other, member.peer, size, 0.0, probed.seconds), state.rounds)
    if len(found.told) == 2:
        del state.links.probes[probed.number]
    return []


def _remember(state: RunState, peer: PeerId, partner: PeerId) -> None:
    if peer not in state.members:
        return
    partners = state.links.probed.setdefault(peer, Probed()).partners
    if len(partners) < MOST_PROBES:
        partners.add(partner)


def _probed(state: RunState, member: Member) -> Probed:
    return state.links.probed.get(member.peer) or Probed()
