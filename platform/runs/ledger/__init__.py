"""Committed work as rows: records, coverage and credit. An audit compares these rows."""
