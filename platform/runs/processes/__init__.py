"""Long work in child processes, one after another."""
