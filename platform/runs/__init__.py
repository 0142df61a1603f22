"""A run as people see it: its purpose, data, recipe, snapshots, release and ledger. Rounds are decided elsewhere."""
