"""Pages about a person's own account: login, settings, machines."""
