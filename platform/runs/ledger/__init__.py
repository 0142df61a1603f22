"""Committed work as rows: records, coverage and credit, and the audit that compares them."""
