"""What tests of pages share: a browser with somebody logged in, and what a page says."""

import re
from typing import Any

from django.test import Client

from accounts.models import Person


def as_(person: Person | str, **options: Any) -> Client:
    """A browser in which this person, or who has this name, is logged in."""
    client = Client(**options)
    client.force_login(person if isinstance(person, Person) else Person.objects.get(username=person))
    return client


def page(answer: Any) -> str:
    """Its text, with one space wherever there is some."""
    return re.sub(r"\s+", " ", answer.content.decode())
