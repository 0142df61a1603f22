"""Who works, and for how much: pace and silence, leasing, settlement, credit."""
