"""What this machine is, what its owner allows, and the folder in which it remembers. Knows no run."""
