"""Data that people bring: uploads, Hub sources, and checks that they are enough for a batch."""
