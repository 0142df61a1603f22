"""Snapshots: checking uploads, verification by replay, held-out losses, and retention."""
