"""Number formats for languages where Django's own formats do not suit the pages."""
