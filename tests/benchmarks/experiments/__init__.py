"""Recipes' learning on external data; each takes about an hour and belongs to no size."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")  # the forms' field labels are translated
