"""Benchmarks of speed, memory and growth (see README.md). Run `python -m tests.benchmarks.NAME`. No test depends on
them.
"""
