"""A run as people see it: purpose, data, recipe, snapshots, release, ledger. Rounds are decided elsewhere."""
