"""One round from cut to commit: offers, plan, reduction, stalls, the record."""
