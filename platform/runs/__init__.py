"""A run as people see it: purpose, data, recipe, snapshots, release and ledger.

The coordinator decides about its rounds.
"""
