"""The pages and the API. Each view parses a request, checks access, calls one function and returns a response."""
