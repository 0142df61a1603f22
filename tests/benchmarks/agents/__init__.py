"""The shipped agent, without a model, as a peer in benchmarks."""
