"""Pages for people, by subject. No page is imported by another room."""
