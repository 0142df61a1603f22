"""Every part of the visual language once, for those who build it."""

from typing import Any

from django.test import Client

from tests.web.browsing import page


def test_it_is_there_in_debug_mode_alone(client: Client, db: None, settings: Any) -> None:
    assert client.get("/styleguide/").status_code == 404
    settings.DEBUG = True
    shown = page(client.get("/styleguide/"))
    for part in ("Colour roles", "accent", "41,210 samples", "Publish run", "E303", "This field is required."):
        assert part in shown
