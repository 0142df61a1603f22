"""One-line faults, each of which some test must catch.

`python -m tests.mutations` plants each in a copy of the tree, runs the tests named beside it, and fails where they
stay green. A pattern that is not found exactly once fails too, so the list cannot rot in silence.
"""
