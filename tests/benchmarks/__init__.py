"""Speed, memory and how they grow: `python -m tests.benchmarks.NAME`. Nothing here decides a test (see README.md)."""
