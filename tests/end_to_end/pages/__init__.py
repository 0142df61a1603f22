"""Journeys over pages: accessibility, and the number of actions people need."""
