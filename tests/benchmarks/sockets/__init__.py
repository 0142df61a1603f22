"""Benchmarks of links between two machines, and of whoever is between them."""
