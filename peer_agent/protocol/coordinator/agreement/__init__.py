"""Votes on the state of the replicas, counted by person: digests, snapshots, and the keeper that uploads a snapshot."""
