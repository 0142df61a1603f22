"""QR codes of addresses."""

from typing import Any

import segno
from django.utils.safestring import SafeString

FRAMED: dict[str, Any] = {"border": 4, "light": "#fff"}  # cameras need a light margin of four modules


def code_of(address: str) -> segno.QRCode:
    return segno.make_qr(address, error="m")


def drawn(address: str, *, is_framed: bool = False) -> SafeString:
    """Return an address's QR code as an SVG. `is_framed` adds a light margin, which cameras need on dark pages."""
    look: dict[str, Any] = FRAMED if is_framed else {"border": 0}
    return SafeString(code_of(address).svg_inline(**look, omitsize=True))
