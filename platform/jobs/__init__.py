"""Background work that must not be forgotten, stored as jobs in the database."""
