"""What is committed, as rows: records, coverage, credit; and whether they agree."""
