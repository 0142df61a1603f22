"""Words of other people, made fit for a terminal: they can move no cursor, change no colour and turn no line around."""

JOINERS = "\u200c\u200d"  # part of how Persian, Hindi and some emoji are written


def plain(text: str) -> str:
    """The text on one line, without control characters and without marks that change the direction of what follows."""
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " * letter.isspace() for letter in text)
