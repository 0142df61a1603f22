"""Building blocks of the benchmarks: figures, processes, and a round without a site."""
