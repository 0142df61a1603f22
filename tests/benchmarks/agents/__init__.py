"""The agent itself as a peer of a benchmark, without a model."""
