"""The committed log, as stored and verified: records, Merkle trees, digests."""
