"""Tests of the job table."""
