"""Answers to co-organizers and moderators at a run's addresses. permission_table.py has the other requesters.

Without an entry here, a co-organizer gets the organizer's answers and a moderator gets a member's. Both have their
role in the run and in the draft.
"""

from typing import NamedTuple

from tests.web.permission_table import Row, rows

HELPERS = {"co-organizer": "organizer", "moderator": "member"}  # the requester whose answers each role shares elsewhere

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
    row: Row
    role: str
    expected: str

    def __str__(self) -> str:
        return f"{self.role} {self.row}"


def answers() -> list[Answer]:
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
