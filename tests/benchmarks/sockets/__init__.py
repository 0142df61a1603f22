"""Benchmarks of links between two machines, and of forwarders between them."""
