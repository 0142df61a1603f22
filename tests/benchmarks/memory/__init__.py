"""What processes take of memory."""
