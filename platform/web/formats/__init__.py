"""Formats of figures in languages whose formats in Django do not suit the pages."""
