"""Votes on replica state, one per person: digests, snapshots, and the trainer that uploads a snapshot."""
