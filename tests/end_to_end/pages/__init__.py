"""End-to-end tests of pages: accessibility, and the number of actions that people need."""
