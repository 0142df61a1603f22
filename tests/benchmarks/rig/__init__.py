"""What the benchmarks are made of: figures, processes, and a round without a site."""
