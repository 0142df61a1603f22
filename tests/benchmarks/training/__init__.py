"""Benchmarks of replicas' computations."""
