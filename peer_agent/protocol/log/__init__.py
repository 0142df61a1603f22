"""The committed log as it is stored and verified: records, Merkle trees, digests."""
