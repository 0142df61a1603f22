"""Snapshots: checked at upload, replayed, measured, thinned."""
