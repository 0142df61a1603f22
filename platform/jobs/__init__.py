"""Background work that must not be lost, stored as jobs in the database."""
