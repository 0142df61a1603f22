"""Benchmarks of processes' memory."""
