"""Helpers for page tests: a logged-in browser, and a page's text."""

import re
from typing import Any

from django.test import Client

from accounts.models import Person


def as_(person: Person | str, **options: Any) -> Client:
    """Return a browser in which this person, given as a row or by name, is logged in."""
    client = Client(**options)
    client.force_login(person if isinstance(person, Person) else Person.objects.get(username=person))
    return client


def page(answer: Any) -> str:
    """Return the page's HTML, with each run of whitespace replaced by one space."""
    return re.sub(r"\s+", " ", answer.content.decode())
