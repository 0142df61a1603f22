"""One-line faults, each of which some test must catch.

`python -m tests.mutations` plants each fault in a copy of the tree, runs its tests, and fails if they stay green.
A pattern that is not found exactly once also fails, so that no entry goes stale unnoticed.
"""
