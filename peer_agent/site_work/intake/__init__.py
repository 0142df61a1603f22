"""Read the data that organizers provide, in many formats, and report how they were understood."""
