"""Entries as they are read back: their signature and root checked, version 1 among them."""

import msgspec

from peer_agent.protocol.credentials import RECORD, Signed, is_signed_by
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.log.records import Entry, Record, RecordHead, whole_of
from peer_agent.protocol.log.version_1 import converted


def open_head(signed: Signed, site_public_key: bytes) -> RecordHead:
    """The head, once its signature holds; of version 1 the whole record. Raises Problem E218."""
    if not is_signed_by(site_public_key, RECORD, signed):
        raise Problem.of("E218")
    return read_head(signed)


def open_record(entry: Entry, site_public_key: bytes) -> Record:
    """The whole record, once its signature and its root hold. Raises Problem E218."""
    if not is_signed_by(site_public_key, RECORD, entry.head):
        raise Problem.of("E218")
    return read_record(entry)


def read_head(signed: Signed) -> RecordHead:
    """The head of an entry whose signature was checked when it was stored. Raises Problem E218."""
    try:
        return msgspec.json.decode(signed.payload, type=RecordHead)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return converted(signed.payload)


def read_record(entry: Entry) -> Record:
    """The whole record of an entry whose signature was checked when it was stored. Raises Problem E218."""
    head = read_head(entry.head)
    return head if isinstance(head, Record) else whole_of(head, entry.contributions)
