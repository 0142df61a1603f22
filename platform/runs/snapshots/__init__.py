"""Snapshots: checks of uploads, verification by replay, held-out losses, and retention."""
