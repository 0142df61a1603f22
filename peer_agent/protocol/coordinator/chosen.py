"""What the plan has chosen for a round that is to come: codecs and contributors."""

from msgspec import Struct

from peer_agent.protocol.identifiers import PeerId
from peer_agent.protocol.recipe import Codec, Recipe


class Chosen(Struct, frozen=True, kw_only=True):
    """As it was last compared (rules 14 and 30).

    Who is neither in `codecs` nor left out is not known well enough: it contributes in the stated codec.
    """

    codecs: dict[PeerId, Codec]
    codec_down: Codec
    left_out: dict[PeerId, str] = {}  # and why
    cannot_follow: frozenset[PeerId] = frozenset()  # of those left out, to whom averages come too slowly
    step_s: float = 0.0  # from one update to the next


def stated(recipe: Recipe) -> Chosen:
    """Everybody, as the recipe says."""
    return Chosen(codecs={}, codec_down=recipe.codec_down)
