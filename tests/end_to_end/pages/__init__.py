"""End-to-end tests of pages: their accessibility, and how few actions people need."""
