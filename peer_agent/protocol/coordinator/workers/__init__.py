"""Working members: their reliability, leasing, and the settlement of leases."""
