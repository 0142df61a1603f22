"""The agent itself as a benchmark's peer, without a model."""
