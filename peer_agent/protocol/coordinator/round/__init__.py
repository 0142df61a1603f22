"""A round from cut to commit: offers, plan, reduction, stalls, and the commit record."""
