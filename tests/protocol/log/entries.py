"""Complete records to seal, with the Merkle root over their contributions."""

from peer_agent.protocol.log.records import Record, whole
from tests.protocol.strategies import sample, structs


def rooted(record: Record) -> Record:
    facts = {name: getattr(record, name) for name in record.__struct_fields__}
    return whole(
        **{name: facts[name] for name in facts if name not in {"version", "contributors", "contributions_root"}}
    )


records = structs(Record).map(rooted)
SAMPLE = rooted(sample(Record))
