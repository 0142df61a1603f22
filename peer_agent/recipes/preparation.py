"""How data are prepared, as the site has it in rows and its children are told."""

import msgspec

from peer_agent.protocol.errors import Problem
from peer_agent.recipes.text.preparation import TextPreparation

Preparation = TextPreparation


def parse_preparation(data: str) -> Preparation:
    """What a recipe's `preparation` was encoded to. Raises Problem E301."""
    try:
        return msgspec.json.decode(data, type=Preparation)
    except msgspec.DecodeError as error:
        raise Problem.of("E301", reason=error) from error
