"""Voting on replica state, one vote per person: digests, snapshots, and the trainer that uploads a snapshot."""
