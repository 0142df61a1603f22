"""The shipped agent, without a model, as a peer of the benchmarks."""
