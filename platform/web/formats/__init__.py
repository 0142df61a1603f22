"""Number formats for languages whose formats in Django are not those that the pages use."""
