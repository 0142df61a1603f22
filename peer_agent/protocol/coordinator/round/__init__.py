"""One round from cut to commit: offers, plan, reduction, what stands still, the record."""
