"""Benchmarks of a replica's computations."""
