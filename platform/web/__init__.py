"""Everything that a browser or an API client sees. Parses, checks access, calls one function, answers."""
