"""Records as version 1 sealed them: contributions inside the signed part, who is included beside each span."""

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from peer_agent.protocol.credentials import RECORD, Signed, sign
from peer_agent.protocol.log.records import Included, Record
from peer_agent.protocol.log.version_1 import Contribution1, Record1, SpanEntry1


def seal_1(site_key: Ed25519PrivateKey, record: Record) -> Signed:
    """A record in which everybody is included everywhere, as a site of version 1 wrote it."""
    everybody = tuple(part.slot for part in record.contributions)
    spans = [
        SpanEntry1(
            **{name: getattr(span, name) for name in span.__struct_fields__},
            included=(Included(span.first, span.stop, everybody),),
        )
        for span in record.spans
    ]
    parts = [
        Contribution1(**{name: getattr(part, name) for name in Contribution1.__struct_fields__})
        for part in record.contributions
    ]
    own: dict[str, Any] = {"spans": tuple(spans), "contributions": tuple(parts), "clipped": ()}
    same = {name: getattr(record, name) for name in Record1.__struct_fields__ if name not in own}
    return sign(site_key, RECORD, msgspec.json.encode(Record1(**same, **own), order="deterministic"))
