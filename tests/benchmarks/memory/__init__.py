"""Benchmarks of process memory."""
