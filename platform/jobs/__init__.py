"""The job table: background work that must be done, remembered in the database."""
