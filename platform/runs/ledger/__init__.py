"""Committed work as rows: records, coverage and credit. An audit cross-checks these rows."""
