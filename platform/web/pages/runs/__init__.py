"""A run's pages: creating, watching and managing it, and downloading its model."""
