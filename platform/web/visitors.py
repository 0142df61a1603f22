"""Who is in front of the page."""

from typing import cast

from django.http import HttpRequest

from accounts.models import Person


def person_in(request: HttpRequest) -> Person:
    """The person who is logged in; for views behind `login_required`."""
    return cast("Person", request.user)
