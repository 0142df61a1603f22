"""Limit how far one person's claims can move an update: norms, weights (rule 12) and losses.

A typical value is a median over people, so a person with many machines counts only once. A run that strangers may join
lists the people it trusts: its organizer and members. Everyone else gets tighter limits.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from peer_agent.protocol import messages as m
from peer_agent.protocol.coordinator.events import Command, Note
from peer_agent.protocol.coordinator.state import Round, RunState
from peer_agent.protocol.coordinator.typical import typical

GROSS = 10.0  # times the typical norm; anything larger is a gross error
STRANGER = 2.0  # times the typical norm and weight; replaces GROSS for people who are not trusted
NEWCOMER = 0.25  # part of a newcomer's weight that counts beside people who are not newcomers
MOST_INCOMPARABLE = 10  # contributions in a row that no auditor could compute again
SETTLED = 10  # updates with a stranger's work, after which they are no newcomer
FEW = 3  # people; with fewer, the typical norm is that of earlier updates
NEAR = 2.0  # a loss more than twice the typical one, or less than half of it, does not count in the update's loss
FAR = 4.0  # the same factor for a loss that the timeline reports

Trusted = Collection[str] | None  # None: everyone


def slots_of(state: RunState, round_: Round) -> tuple[m.Slot, ...]:
    """Return the plan's slots: the offers that contain work, each with its norm and weight limited."""
    offers = [(peer, offer) for peer, offer in sorted(round_.offers.items()) if offer.loss_tokens]
    persons = [round_.persons[peer][0] for peer, _ in offers]
    norms, tokens = [offer.norm for _, offer in offers], [offer.loss_tokens for _, offer in offers]
    scales = scales_of(persons, norms, tokens, state.trusted, _earlier(state))
    weights = weights_of(persons, [offer.weights for _, offer in offers], state.trusted, newcomers_of(state, persons))
    return tuple(
        m.Slot(
            peer=peer,
            weights=limited,
            root=offer.root,
            norm=offer.norm,
            codec=round_.codecs[peer],
            scale=scale,
        )
        for (peer, offer), scale, limited in zip(offers, scales, weights, strict=True)
    )


def _earlier(state: RunState) -> float:
    """Return the typical norm of earlier updates of an open run, or 0 if there are none."""
    return median(state.norms) if state.norms and state.trusted is not None else 0.0


def scales_of(
    persons: Sequence[str],
    norms: Sequence[float],
    tokens: Sequence[int],
    trusted: Trusted = None,
    earlier: float = 0.0,
) -> list[float]:
    """Return each offer's scale, limiting its norm to a multiple of the typical norm.

    An offer with fewer tokens than typical is noisier. It may exceed this limit by the square root of the ratio. Two
    people could each call the other's norm the gross error. With fewer than three, `earlier`, the typical norm of
    earlier updates, decides. 0 means that there is none.
    """
    norm, usual = typical(persons, norms), typical(persons, tokens)
    if earlier and len(set(persons)) < FEW:
        norm = earlier
    bounds = [
        (GROSS if _is_trusted(person, trusted) else STRANGER) * norm * max(1.0, math.sqrt(usual / own))
        for person, own in zip(persons, tokens, strict=True)
    ]
    return [bound / norm if norm > bound else 1.0 for norm, bound in zip(norms, bounds, strict=True)]


def newcomers_of(state: RunState, persons: Collection[str]) -> frozenset[str]:
    """Return the newcomers among these people: strangers whose work is in few updates.

    Those with a machine in doubt, or whose work could long not be checked, count as newcomers. None, if all do.
    """
    records = ((member.person, member.reliability) for member in state.members.values())
    doubted = {person for person, record in records if record.in_doubt or record.incomparable >= MOST_INCOMPARABLE}
    strangers = {person for person in persons if not _is_trusted(person, state.trusted)}
    found = {person for person in strangers if state.contributed[person] < SETTLED or person in doubted}
    return frozenset(found) if found < set(persons) else frozenset()


def weights_of(
    persons: Sequence[str],
    offered: Sequence[tuple[m.Weight, ...]],
    trusted: Trusted = None,
    newcomers: Collection[str] = (),
) -> list[tuple[m.Weight, ...]]:
    """Return each offer's weights in the average.

    A stranger's offers together weigh at most twice the median person's, and a newcomer's a quarter of what they offer.
    """
    total = Counter[str]()
    for person, weights in zip(persons, offered, strict=True):
        total[person] += max(weight.tokens for weight in weights)
    most = int(STRANGER * median(total.values()))
    limits = {person: tokens if _is_trusted(person, trusted) else min(most, tokens) for person, tokens in total.items()}
    limits |= {person: min(most, int(NEWCOMER * total[person])) for person in newcomers}
    return [
        weights
        if total[person] <= limits[person]
        else tuple(m.Weight(w.first, w.stop, _part(w.tokens, limits[person], total[person])) for w in weights)
        for person, weights in zip(persons, offered, strict=True)
    ]


def _part(tokens: int, most: int, total: int) -> int:
    return max(tokens * most // total, min(tokens, 1))  # at least one, since a slot without weight sends nothing


def _is_trusted(person: str, trusted: Trusted) -> bool:
    return trusted is None or person in trusted


# --- losses


def loss_of(state: RunState, round_: Round) -> float:
    """Return the mean loss over the round's loss tokens, leaving out people whose loss is far from typical."""
    said = _said(round_)
    typical = _typical_loss(state, said)
    near = [(loss, tokens) for loss, tokens in said.values() if _is_within(loss / tokens, typical, NEAR)]
    return sum(loss for loss, _ in near) / sum(tokens for _, tokens in near) if near else typical


def loss_of_people(state: RunState, round_: Round) -> float | None:
    """Return the median of the mean losses of all people.

    With fewer than three people in an open run, use those of people whom the organizer trusts. None if there are none.
    """
    means = {person: loss / tokens for person, (loss, tokens) in _said(round_).items()}
    if state.trusted is not None and len(means) < FEW:
        means = {person: mean for person, mean in means.items() if person in state.trusted}
    return median(means.values()) if means else None


def doubt_losses(state: RunState, round_: Round) -> list[Command]:
    """Report on the timeline which people state a loss that is implausible given everyone else's."""
    said = _said(round_)
    if len(said) < 3:
        return []  # of two people, either may be wrong
    typical = _typical_loss(state, said)
    text = "{} says a loss of {:.3g} where {:.3g} is typical; it does not count in the curve"
    return [
        Note("refused", text.format(person, loss / tokens, typical), (person,))
        for person, (loss, tokens) in said.items()
        if not _is_within(loss / tokens, typical, FAR)
    ]


def _said(round_: Round) -> dict[str, tuple[float, int]]:
    """Return the total loss and loss tokens stated by each person's machines."""
    said = dict[str, tuple[float, int]]()
    for slot in round_.slots:
        person, offer = round_.persons[slot.peer][0], round_.offers[slot.peer]
        loss, tokens = said.get(person, (0.0, 0))
        said[person] = loss + offer.loss_sum, tokens + offer.loss_tokens
    return said


def _typical_loss(state: RunState, said: Mapping[str, tuple[float, int]]) -> float:
    """Return the median of the mean losses of all people.

    With only two people, the last update's loss counts as a third, so that neither of them decides alone.
    """
    means = [loss / tokens for loss, tokens in said.values()]
    if len(means) == 2 and state.loss is not None:
        means.append(state.loss)
    return median(means)


def _is_within(loss: float, typical: float, factor: float) -> bool:
    return typical <= factor * loss and loss <= factor * typical
