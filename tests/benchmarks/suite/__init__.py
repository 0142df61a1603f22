"""All benchmarks together: their sizes and budgets, and their figures as tables."""
