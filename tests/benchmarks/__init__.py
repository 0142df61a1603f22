"""Benchmarks of speed, memory and growth (README.md). Run `python -m tests.benchmarks.NAME`. No test depends on
them."""
