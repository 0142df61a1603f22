"""Pages about oneself: logging in, one's account, one's machines."""
