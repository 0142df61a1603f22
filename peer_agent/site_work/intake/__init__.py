"""Reads the data that organizers bring, in many formats, and reports how they were understood."""
