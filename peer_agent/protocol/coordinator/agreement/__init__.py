"""What replicas say of their states, counted by people: digests, snapshots, who hands one in."""
