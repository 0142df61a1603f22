"""Benchmarks of the memory of processes."""
