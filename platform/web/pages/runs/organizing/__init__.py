"""Pages of those who manage a run together: their roles, and what each of them did."""
