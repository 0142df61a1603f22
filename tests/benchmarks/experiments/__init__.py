"""What recipes learn, on data from outside: each takes its hour, and is no part of a size."""
