"""Pages about the user's own account: login, settings, machines."""
