"""Reads what organizers bring, in the forms in which people bring it, and says what was understood."""
