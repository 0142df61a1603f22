"""Journeys over pages: who can use them, and how much there is to do."""
