"""Pages for people, by subject. The API and the live feed do not import this package."""
