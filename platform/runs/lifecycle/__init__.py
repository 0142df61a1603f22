"""A run from draft to end: made, prepared, opened, paused, ended; who belongs to it, what one person may have."""
