"""Admission of watchers: checks on the page's origin, the user and the number of WebSockets."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest, QueryDict, parse_cookie
from django.http.request import split_domain_port, validate_host

from config.proxies import visitor_in
from peer_agent.protocol.errors import Problem
from runs.access import Viewer, access_run, person_of
from runs.models import Run
from web.http.requester import household
from web.run_picture.loading import known_language

MOST_OF_PERSON = 40  # most WebSockets per person; visitors without a login are counted by address
MOST = 5000  # most WebSockets in this process
LONGEST_QUERY = 200  # most bytes read from a query string

Scope = dict[str, Any]
_sockets: Counter[str] = Counter()


def visible_run(scope: Scope) -> Run | None:
    """Return the requested run, or None if the WebSocket's user is not allowed to see it."""
    try:
        return access_run(slug=scope["url_route"]["kwargs"]["slug"], viewer=viewer_of(scope))
    except Problem:
        return None


def viewer_of(scope: Scope) -> Viewer:
    """Return the user that the WebSocket's session cookie belongs to. Reads the database."""
    sessions = import_module(settings.SESSION_ENGINE)
    request = HttpRequest()
    request.session = sessions.SessionStore(parse_cookie(header(scope, b"cookie")).get(settings.SESSION_COOKIE_NAME))
    viewer: Viewer = get_user(request)
    return viewer


def language_of(scope: Scope) -> str:
    """Return the page's language, given a query string such as `?language=bn`."""
    asked = QueryDict(scope.get("query_string", b"")[:LONGEST_QUERY])
    return known_language(asked.get("language", ""))


def comes_from_here(scope: Scope) -> bool:
    """Return True if a page of this site opened the WebSocket, or a program, which sends no Origin header."""
    host = header(scope, b"host")
    name, _ = split_domain_port(host)
    if not validate_host(name, settings.ALLOWED_HOSTS):
        return False
    origin = header(scope, b"origin")
    return not origin or origin == settings.PUBLIC_URL or urlsplit(origin).netloc == host


class Place(NamedTuple):
    """The person or address for whom WebSockets are counted, and how many are allowed."""

    who: str
    most: int


def place_of(scope: Scope) -> Place:
    """Return the user that a WebSocket counts towards or, without a login, its address.

    An address may have more WebSockets than a user, since many people may share a school's or proxy's address.
    """
    if (person := person_of(viewer_of(scope))) is not None:
        return Place(f"person {person.pk}", MOST_OF_PERSON)
    return Place(address_of(scope), settings.PEOPLE_PER_ADDRESS)


def address_of(scope: Scope) -> str:
    return household(visitor_in(scope))


def header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in reversed(scope["headers"]) if key == name), "")


@contextmanager
def counted_in(place: Place) -> Iterator[bool]:
    """Count one more WebSocket for the duration of the block. Yield False if this would exceed the limit."""
    has_room = _sockets[place.who] < place.most and _sockets.total() < MOST
    _sockets[place.who] += has_room
    try:
        yield has_room
    finally:
        _sockets[place.who] -= has_room
        if not _sockets[place.who]:
            del _sockets[place.who]
