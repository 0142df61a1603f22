"""A run as people see it: its purpose, data, recipe, snapshots, release and ledger. `coordination` handles rounds."""
