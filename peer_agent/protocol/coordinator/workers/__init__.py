"""Working members: how reliable they are, and how leases are granted and settled."""
