"""The committed log, as it is stored and proved: records, Merkle trees, digests."""
