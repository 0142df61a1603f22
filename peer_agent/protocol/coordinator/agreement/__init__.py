"""Votes on replicas' states, counted by person: digests, snapshots, and the keeper who uploads one."""
