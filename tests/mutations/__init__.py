"""One-line faults, each of which some test must catch.

`python -m tests.mutations` plants each fault in a copy of the tree, runs the tests named for it, and fails if they
pass. It also fails on a pattern that does not occur exactly once, so that no outdated entry goes unnoticed.
"""
