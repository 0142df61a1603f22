"""Generate docs/permissions.md: the response to each requester at each URL, from the table that the tests check."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from tests.web.permission_table import ABOUT, EVERYBODY, FURTHER, VISIBILITIES, Row, rows

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
PARTS = {  # The parts of the site, with the beginnings of their addresses. The first match counts.
    "The API": ("/api/",),
    "Runs": ("/runs/",),
    "Uploads": ("/uploads/",),
    "People and teams": ("/people/", "/teams/"),
    "Machines": ("/machines/", "/approve/", "/download/"),
    "Accounts": ("/account/", "/login/", "/logout/", "/signup/", "/password/"),
    "The site": ("/",),
}
PAGE = """# Permissions

This page lists every URL of the site, with every method it accepts and the response to each kind of requester.
`tests/web/test_permissions.py` takes the URLs from the URL configuration and requests each one as every requester
below. It fails if a response differs, or if a URL has no row. `tests/web/feed/test_socket_permissions.py` has two more
tables: who may watch a run live, and whose machines may take part.

{askers}

A number is an HTTP status. *login* means a redirect to the login page; *done* means a redirect elsewhere, as after a
form has been submitted successfully. If a requester may not see a run, the response is the same as if the run did not
exist. HEAD requests get the same response as GET, or 405. Machines, tokens and uploads in the URLs belong to the
member; runs and invitations belong to the organizer. Everything under `/admin/` is a single row: a separate test visits
every page there.

{parts}"""


def permissions_page(table: Table) -> str:
    """Return the whole page, with a table for each part of the site."""
    askers = [(name, ABOUT[name] if name in ABOUT else FURTHER[name].about) for name in EVERYBODY]
    parts = []
    for title, found in by_part().items():
        cells = [line for _, place in groupby(found, key=place_of) for line in lines(list(place))]
        parts.append(f"## {title}\n\n" + table(("method", "URL", "run is", *EVERYBODY), cells) + "\n")
    return PAGE.format(askers=table(("requester", "description"), askers), parts="\n".join(parts))


def by_part() -> dict[str, list[Row]]:
    """Return the table's rows for each part of the site, sorted by address and method."""
    found: dict[str, list[Row]] = {title: [] for title in PARTS}
    for row in sorted(rows(), key=lambda row: row.address):
        found[next(title for title, starts in PARTS.items() if row.address.startswith(starts))].append(row)
    return {title: sorted(of_part, key=place_of) for title, of_part in found.items()}


def place_of(row: Row) -> tuple[str, str]:
    """Return the address and method of a row, by which rows that differ only in visibility are grouped."""
    return row.address, row.method


def lines(place: list[Row]) -> Iterator[list[str]]:
    """Yield the page's table rows for one address and method. Visibilities with the same responses share a row."""
    place = sorted(place, key=lambda row: ("*", *VISIBILITIES).index(row.visibility))
    for answers, found in groupby(place, key=lambda row: row.answers):
        which = [row.visibility for row in found]
        kinds = "" if which in (["*"], [*VISIBILITIES]) else ", ".join(which)
        method, address = place[0].method, place[0].address
        yield [method.lower() if method == "ANY" else method, f"`{address}`", kinds, *answers.values()]
