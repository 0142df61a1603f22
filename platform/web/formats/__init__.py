"""Number formats for languages in which Django's own formats do not suit the pages."""
