"""What those who help an organizer get at the addresses of a run: beside permission_table.py, which has the others.

Where nothing is said here, a co-organizer is answered as the organizer is, and a moderator as a member. Both have their
role in the run and in the draft.
"""

from typing import NamedTuple

from tests.web.permission_table import Row, rows

HELPERS = {"co-organizer": "organizer", "moderator": "member"}  # and as whom they are answered elsewhere

TABLE = """
                                                     co-organizer moderator

GET   /runs/<slug>/manage/                           200          200
GET   /runs/<slug>/delete/                           403          403
POST  /runs/<slug>/delete/                           403          403
POST  /runs/<slug>/announce/                         done         done
POST  /runs/<slug>/members/<member_id>/              done         done
POST  /runs/<slug>/removed/                          done         done
POST  /runs/<slug>/requests/<request_id>/            done         done
POST  /runs/<slug>/removed/<member_id>/              done         done
GET   /runs/<slug>/role/                             200          200
POST  /runs/<slug>/role/                             done         done
"""


class Answer(NamedTuple):
    """What one of them gets in one row."""

    row: Row
    role: str
    expected: str

    def __str__(self) -> str:
        return f"{self.role} {self.row}"


def answers() -> list[Answer]:
    """All rows about a run, for each of them."""
    lines = [line.split() for line in TABLE.splitlines() if line.strip()]
    assert lines[0] == [*HELPERS]
    own = {(method, address): dict(zip(HELPERS, said, strict=True)) for method, address, *said in lines[1:]}
    of_runs = [row for row in rows() if "/runs/<slug>" in row.address]
    assert own.keys() <= {(row.method, row.address) for row in of_runs}
    return [
        Answer(row, role, own.get((row.method, row.address), {}).get(role, row.answers[like]))
        for row in of_runs
        for role, like in HELPERS.items()
    ]
