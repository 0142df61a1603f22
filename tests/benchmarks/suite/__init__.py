"""All the benchmarks together: their sizes and time budgets, and their figures as tables."""
