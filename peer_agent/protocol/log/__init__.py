"""What is committed, as it is kept and proved: records, Merkle trees, digests."""
