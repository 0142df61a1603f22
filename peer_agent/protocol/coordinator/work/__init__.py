"""Who works on what: leases, reports, pace and silence, settlement, credit."""
