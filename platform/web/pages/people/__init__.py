"""Pages of people: their contributions, and a certificate."""
