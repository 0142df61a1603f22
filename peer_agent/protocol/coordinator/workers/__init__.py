"""Members that work, and their credit: pace and silence, leasing, settlement, credit."""
