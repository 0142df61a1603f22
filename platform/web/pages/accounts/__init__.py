"""Pages about oneself: login, account, machines."""
