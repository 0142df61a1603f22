"""All benchmarks together: which belong to which size, with what budget, and their figures as tables."""
