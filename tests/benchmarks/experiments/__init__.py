"""What recipes learn, on data from outside: each takes its hour, and is no part of a size."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")  # what forms call their fields is translated
