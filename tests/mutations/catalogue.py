"""All the mutations, grouped by the part of the code in which they are planted."""

from tests.mutations.coordinator import COORDINATOR
from tests.mutations.data import DATA
from tests.mutations.forwarding import FORWARDING
from tests.mutations.hosting import HOSTING
from tests.mutations.mutation import Mutation
from tests.mutations.overlap import OVERLAPPING
from tests.mutations.protocol import PROTOCOL
from tests.mutations.reducer import REDUCER
from tests.mutations.relay import RELAY
from tests.mutations.store import STORED
from tests.mutations.strangers import STRANGERS
from tests.mutations.streamed import STREAMED_TEXTS
from tests.mutations.trainer import TRAINER
from tests.mutations.troubles import TROUBLES

MUTATIONS: tuple[Mutation, ...] = (
    *PROTOCOL,
    *COORDINATOR,
    *TRAINER,
    *OVERLAPPING,
    *RELAY,
    *FORWARDING,
    *REDUCER,
    *STORED,
    *HOSTING,
    *STRANGERS,
    *TROUBLES,
    *DATA,
    *STREAMED_TEXTS,
)
# mutations that no test of `make test` catches, because its simulations and searches are short; at most a fifth of all
ONLY_IN_CHECK: frozenset[str] = frozenset({"what rows unpack to has no end"})
