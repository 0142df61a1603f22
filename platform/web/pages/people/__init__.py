"""Pages of people: what they gave, and a certificate of it."""
