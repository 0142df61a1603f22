"""A run as people see it: purpose, data, recipe, snapshots, release, ledger. Decides nothing about rounds."""
