"""A short code in letters that can be read from across the room."""

ROWS = 5
# Each letter is its rows from the top, five bits each; the highest bit is on the left.
SHAPES = {
    "A": (14, 17, 31, 17, 17),
    "B": (30, 17, 30, 17, 30),
    "C": (15, 16, 16, 16, 15),
    "D": (30, 17, 17, 17, 30),
    "E": (31, 16, 30, 16, 31),
    "F": (31, 16, 30, 16, 16),
    "G": (15, 16, 19, 17, 15),
    "H": (17, 17, 31, 17, 17),
    "I": (14, 4, 4, 4, 14),
    "J": (7, 2, 2, 18, 12),
    "K": (17, 18, 28, 18, 17),
    "L": (16, 16, 16, 16, 31),
    "M": (17, 27, 21, 17, 17),
    "N": (17, 25, 21, 19, 17),
    "O": (14, 17, 17, 17, 14),
    "P": (30, 17, 30, 16, 16),
    "Q": (14, 17, 17, 18, 13),
    "R": (30, 17, 30, 18, 17),
    "S": (15, 16, 14, 1, 30),
    "T": (31, 4, 4, 4, 4),
    "U": (17, 17, 17, 17, 14),
    "V": (17, 17, 17, 10, 4),
    "W": (17, 17, 21, 27, 17),
    "X": (17, 10, 4, 10, 17),
    "Y": (17, 10, 4, 4, 4),
    "Z": (31, 2, 4, 8, 31),
    "-": (0, 0, 14, 0, 0),
}


def in_large_letters(code: str, ink: str = "█") -> list[str]:
    """The lines of a code, seven columns a letter; none where it holds something that has no shape here."""
    if any(letter not in SHAPES for letter in code):
        return []
    return ["  ".join(_row(SHAPES[letter][row], ink) for letter in code).rstrip() for row in range(ROWS)]


def _row(bits: int, ink: str) -> str:
    return "".join(ink if bits >> place & 1 else " " for place in range(4, -1, -1))
