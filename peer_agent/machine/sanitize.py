"""Words of other people, made fit for a terminal: they can move no cursor, change no colour and turn no line around."""

import logging

JOINERS = "\u200c\u200d"  # part of how Persian, Hindi and some emoji are written


def sanitize(text: str) -> str:
    """The text on one line, without control characters and without marks that change the direction of what follows."""
    return "".join(letter if letter.isprintable() or letter in JOINERS else " " * letter.isspace() for letter in text)


class SanitizingFormatter(logging.Formatter):
    """Lines of the log as they may stand in a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Its own line breaks stay: a traceback has several."""
        return "\n".join(sanitize(line) for line in super().format(record).split("\n"))
