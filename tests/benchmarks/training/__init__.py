"""Benchmarks of what replicas compute."""
