"""Everything that browsers and API clients see. Each view parses, checks access, calls one function and answers."""
