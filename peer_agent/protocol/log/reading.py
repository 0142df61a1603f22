"""Entries as they are read back: their signature and root checked."""

import msgspec

from peer_agent.protocol.credentials import RECORD, Signed, is_signed_by
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Entry, Record, RecordHead, whole_of


def open_head(signed: Signed, site_public_key: bytes) -> RecordHead:
    """The head, once its signature holds. Raises Problem E218."""
    if not is_signed_by(site_public_key, RECORD, signed):
        raise Problem.of("E218")
    return read_head(signed)


def open_record(entry: Entry, site_public_key: bytes) -> Record:
    """The whole record, once its signature and its root hold. Raises Problem E218."""
    return whole_of(open_head(entry.head, site_public_key), entry.contributions)


def read_head(signed: Signed) -> RecordHead:
    """The head of an entry whose signature was checked when it was stored. Raises Problem E218 for another version."""
    try:
        return msgspec.json.decode(signed.payload, type=RecordHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem.of("E218") from error


def read_record(entry: Entry) -> Record:
    """The whole record of an entry whose signature was checked when it was stored. Raises Problem E218."""
    return whole_of(read_head(entry.head), entry.contributions)
