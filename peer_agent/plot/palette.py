"""The inks of a picture that has no style sheet: those that `frontend/static/manyhands.css` has by daylight."""

from typing import Final

SHEET: Final = "#ffffff"
INK: Final = "#22201d"
SOFT: Final = "#67615a"
LINE: Final = "#e2ddd5"
ACCENT: Final = "#a8431a"
