"""Learning with real recipes on external data. Each experiment takes about an hour and runs only when called by
name."""

import os

# field labels of the forms are translated, which needs Django's settings
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
