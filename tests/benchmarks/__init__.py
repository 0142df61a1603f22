"""Benchmarks of speed, memory and growth: `python -m tests.benchmarks.NAME` (README.md). No test depends on them."""
