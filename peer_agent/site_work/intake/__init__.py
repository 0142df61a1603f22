"""Read data provided by organizers, in many formats, and report how it was interpreted."""
