"""Pages for people, by subject. No other package imports this one."""
