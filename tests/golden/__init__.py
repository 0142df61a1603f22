"""Examples of every data format that other programs rely on. The tests of all languages read them."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def shape_of(value: Any) -> Any:
    """Return the names and types of a JSON value. Integers and floats are both "number"; null matches anything."""
    match value:
        case dict():
            return {name: shape_of(part) for name, part in value.items()}
        case list():
            return [shape_of(value[0])] if value else []
        case bool():
            return "truth"
        case int() | float():
            return "number"
    return type(value).__name__
