"""Who may do what: the expected answer to every method of every address. Read by test_permissions.py.

A row is: method, address, visibility of the run (`*`: whatever it is), then the answer to each asker. Its words:

    a number   the status            login   a redirect to the login page
    done       a redirect elsewhere (the form did its work)

The method ANY stands for all of them, and ** for everything below; below /admin/ Django has its own pages, of which
test_admin.py walks every one.

Askers: `nobody` is not logged in; `stranger`, `member`, `organizer`, `operator` are logged in and hold a machine of
their own with a credential for the run where the site gives them one (else for another run); `revoked` shows the
credential of a machine that was revoked since, and no session. The member's is the machine, and the personal token,
in addresses.
"""

from typing import NamedTuple

ASKERS = ("nobody", "stranger", "member", "organizer", "operator", "revoked")

TABLE = """
                                                               nobody stranger member organizer operator revoked

GET   /                                              *         200    200      200    200       200      200
GET   /runs/new/                                     *         login  200      200    200       200      login
POST  /runs/new/                                     *         login  done     done   done      done     login
GET   /runs/<slug>/                                  public    200    200      200    200       200      200
GET   /runs/<slug>/                                  unlisted  200    200      200    200       200      200
GET   /runs/<slug>/                                  private   404    404      404    200       404      404
GET   /runs/<slug>/manage/                           public    login  403      403    200       403      login
GET   /runs/<slug>/manage/                           unlisted  login  403      403    200       403      login
GET   /runs/<slug>/manage/                           private   login  404      404    200       404      login
POST  /runs/<slug>/manage/                           public    login  403      403    done      403      login
POST  /runs/<slug>/manage/                           unlisted  login  403      403    done      403      login
POST  /runs/<slug>/manage/                           private   login  404      404    done      404      login

GET   /machines/                                     *         login  200      200    200       200      login
POST  /machines/                                     *         login  200      200    200       200      login
POST  /machines/<machine_id>/                        *         login  404      done   404       404      login
POST  /machines/tokens/                              *         login  200      200    200       200      login
POST  /machines/tokens/<token_id>/                   *         login  404      done   404       404      login

GET   /signup/                                       *         200    done     done   done      done     200
POST  /signup/                                       *         done   done     done   done      done     done
GET   /login/                                        *         200    done     done   done      done     200
POST  /login/                                        *         done   done     done   done      done     done
GET   /login/name/                                   *         login  login    login  login     login    login
POST  /login/name/                                   *         login  login    login  login     login    login
GET   /login/with/github/                            *         404    404      404    404       404      404
GET   /login/with/github/callback/                   *         404    404      404    404       404      404
GET   /login/with/<provider_id>/                     *         404    404      404    404       404      404
GET   /login/with/<provider_id>/callback/            *         404    404      404    404       404      404
POST  /logout/                                       *         done   done     done   done      done     done
GET   /account/                                      *         login  200      200    200       200      login
POST  /account/password/                             *         login  done     done   done      done     login
POST  /account/sessions/                             *         login  done     done   done      done     login
GET   /password/<person_id>/<token>/                 *         410    410      410    410       410      410
POST  /password/<person_id>/<token>/                 *         410    410      410    410       410      410
ANY   /admin/**                                      *         login  403      403    403       200      login
GET   /operator/<secret>/                            *         404    404      404    404       404      404
POST  /operator/<secret>/                            *         404    404      404    404       404      404
GET   /help/                                         *         200    200      200    200       200      200
GET   /help/<topic>/                                 *         200    200      200    200       200      200
GET   /healthz                                       *         200    200      200    200       200      200
GET   /readyz                                        *         200    200      200    200       200      200

ANY   /api/v1/                                       *         404    404      404    404       404      404
ANY   /api/v1/openapi.json                           *         200    200      200    200       200      200
GET   /api/v1/runs                                   *         200    200      200    200       200      200
GET   /api/v1/runs/<slug>                            public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>                            unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>                            private   404    404      404    200       404      404
GET   /api/v1/runs/<slug>/steps                      public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>/steps                      unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>/steps                      private   404    404      404    200       404      404
GET   /api/v1/runs/<slug>/leaderboard                public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>/leaderboard                unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>/leaderboard                private   404    404      404    200       404      404
GET   /api/v1/runs/<slug>/ledger                     public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>/ledger                     unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>/ledger                     private   404    404      404    200       404      404
GET   /api/v1/runs/<slug>/snapshots                  public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>/snapshots                  unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>/snapshots                  private   404    404      404    200       404      404
GET   /api/v1/runs/<slug>/release/<name>             public    200    200      200    200       200      200
GET   /api/v1/runs/<slug>/release/<name>             unlisted  200    200      200    200       200      200
GET   /api/v1/runs/<slug>/release/<name>             private   404    404      404    200       404      404

POST  /api/v1/machines                               *         401    200      200    200       200      401
POST  /api/v1/runs/<slug>/credential                 public    401    200      200    200       200      403
POST  /api/v1/runs/<slug>/credential                 unlisted  401    200      200    200       200      403
POST  /api/v1/runs/<slug>/credential                 private   401    404      404    200       404      403
POST  /api/v1/relays/credential                      *         401    403      403    403       200      403
GET   /api/v1/files/shards/<digest>                  public    401    200      200    200       200      403
GET   /api/v1/files/shards/<digest>                  unlisted  401    200      200    200       200      403
GET   /api/v1/files/shards/<digest>                  private   401    404      404    200       404      403
GET   /api/v1/files/snapshots/<digest>               public    401    200      200    200       200      403
GET   /api/v1/files/snapshots/<digest>               unlisted  401    200      200    200       200      403
GET   /api/v1/files/snapshots/<digest>               private   401    404      404    200       404      403
PUT   /api/v1/runs/<slug>/snapshots/<step>           public    401    200      200    200       200      403
PUT   /api/v1/runs/<slug>/snapshots/<step>           unlisted  401    200      200    200       200      403
PUT   /api/v1/runs/<slug>/snapshots/<step>           private   401    403      403    200       403      403
"""


class Row(NamedTuple):
    """One line of the table."""

    method: str
    address: str
    visibility: str
    answers: dict[str, str]

    def __str__(self) -> str:
        return f"{self.method} {self.address} {self.visibility}"


def rows() -> list[Row]:
    """The table, line by line."""
    lines = [line.split() for line in TABLE.splitlines() if line.strip()]
    assert tuple(lines[0]) == ASKERS
    return [Row(line[0], line[1], line[2], dict(zip(ASKERS, line[3:], strict=True))) for line in lines[1:]]
