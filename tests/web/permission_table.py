"""The permission table: the expected answer to every method at every address. test_permissions.py reads it.

A row is: method, address, visibility of the run (`*`: any), then the answer to each requester. An unlisted run without
a row of its own gives the answers of a public run. So does a run that people join by request, except for those in
BY_REQUEST. The answers:

    a number   the status            login   a redirect to the login page
    done       a redirect elsewhere (the form did its work)

The method ANY stands for all methods. GET also covers HEAD, which may be refused with 405. An address that ends with
** stands for all the addresses below it. Django's pages are below /admin/, and test_admin_site.py requests each of
them.

The member belongs to the run, whatever the run's visibility. In a private run, membership gives access to pages, files
and rounds, but not to the organizer's pages. The machine, personal token, upload and device code in addresses and
bodies belong to the member. A member in an address belongs to the run; below removed/, the run has removed that member.
An invitation in an address belongs to the run, and a secret in an address is valid.

Further requesters have a row in FURTHER. The row names the requester whose answers they share, and the exceptions.
docs/permissions.md shows the whole table; `python -m scripts.generate_docs` writes that page.
"""

from typing import NamedTuple

REQUESTERS = ("nobody", "stranger", "member", "organizer", "operator", "revoked")
ABOUT = {
    "nobody": "not logged in, without a machine",
    "stranger": "logged in; has a machine with a credential for the run if the site issues one, else for another",
    "member": "like a stranger, but in the run by invitation",
    "organizer": "like a stranger, but owns the run",
    "operator": "hosts the site and a relay; sees invitation-only runs only on the operator pages",
    "revoked": "no session; has a credential of one of the organizer's machines, revoked after it was issued",
}


class Further(NamedTuple):
    about: str
    like: str  # the requester with the same answers
    but: dict[str, str]  # exceptions at "METHOD address": another requester's answers, or answers by visibility


MACHINES_ASK = (  # addresses that machines request with a credential
    "GET /api/v1/files/averages/<entry>/<span>",
    "GET /api/v1/files/models/<digest>",
    "GET /api/v1/files/shards/<digest>",
    "GET /api/v1/files/snapshots/<digest>",
    "GET /api/v1/files/tokenizer",
    "GET /api/v1/files/tokenizer/<name>",
    "PUT /api/v1/runs/<slug>/snapshots/<step>",
    "POST /api/v1/runs/<slug>/credential",
    "POST /api/v1/relays/credential",
)
FURTHER = {
    "removed": Further(
        "was in the run until the organizer removed them; has a credential from before",
        like="stranger",
        but={
            "POST /runs/<slug>/join/<secret>/": "done done 404",
            "POST /api/v1/runs/<slug>/credential": "403 403 404",
            "PUT /api/v1/runs/<slug>/snapshots/<step>": "403 403 404",
            **dict.fromkeys((place for place in MACHINES_ASK if "/files/" in place), "404 404 404"),
        },
    ),
    "closed": Further(
        "the organizer, after an operator closed the account; the session, token and credential are from before",
        like="nobody",
        but=dict.fromkeys(MACHINES_ASK, "revoked"),
    ),
}
EVERYBODY = (*REQUESTERS, *FURTHER)
WRITTEN = ("public", "unlisted", "private")
VISIBILITIES = (*WRITTEN, "request")
BY_REQUEST: dict[str, dict[str, str]] = {  # answers of a run joined by request that differ from those of a public run
    "GET /runs/<slug>/join/<secret>/": {"member": "done", "organizer": "done"},
    "POST /runs/<slug>/request/": {"stranger": "done", "operator": "done"},
    "POST /api/v1/runs/<slug>/credential": {"stranger": "403", "operator": "403"},
    "PUT /api/v1/runs/<slug>/snapshots/<step>": {"stranger": "403", "operator": "403"},
    **{
        f"GET /api/v1/files/{place}": {"stranger": "404", "operator": "404"}
        for place in (
            "averages/<entry>/<span>",
            "shards/<digest>",
            "snapshots/<digest>",
            "tokenizer",
            "tokenizer/<name>",
        )
    },
}

TABLE = """
                                                               nobody stranger member organizer operator revoked

GET   /                                              *         200    200      200    200       200      200
GET   /preview.png                                   *         200    200      200    200       200      200
GET   /runs/new/                                     *         login  200      200    200       200      login
POST  /runs/new/                                     *         login  done     done   done      done     login
GET   /runs/new/estimate/                            *         login  200      200    200       200      login
GET   /runs/<slug>/                                  public    200    200      200    200       200      200
GET   /runs/<slug>/                                  private   404    404      200    200       404      404
GET   /runs/<slug>/manage/                           public    login  403      403    200       403      login
GET   /runs/<slug>/manage/                           private   login  404      403    200       404      login
POST  /runs/<slug>/manage/                           public    login  403      403    done      403      login
POST  /runs/<slug>/manage/                           private   login  404      403    done      404      login
GET   /runs/<slug>/curve.png                         public    200    200      200    200       200      200
GET   /runs/<slug>/curve.png                         private   404    404      200    200       404      404
GET   /runs/<slug>/curve.csv                         public    200    200      200    200       200      200
GET   /runs/<slug>/curve.csv                         private   404    404      200    200       404      404
GET   /runs/<slug>/feed.json                         public    200    200      200    200       200      200
GET   /runs/<slug>/feed.json                         private   404    404      200    200       404      404
GET   /runs/<slug>/leaderboard/                      public    200    200      200    200       200      200
GET   /runs/<slug>/leaderboard/                      private   404    404      200    200       404      404
GET   /runs/<slug>/activity/                          public   200    200      200    200       200      200
GET   /runs/<slug>/activity/                          private  404    404      200    200       404      404
GET   /runs/<slug>/swarm/                             public   200    200      200    200       200      200
GET   /runs/<slug>/swarm/                             private  404    404      200    200       404      404
GET   /runs/<slug>/feed.rss                           public   200    200      200    200       200      200
GET   /runs/<slug>/feed.rss                           private  404    404      200    200       404      404
GET   /runs/<slug>/badge.svg                          public   200    200      200    200       200      200
GET   /runs/<slug>/badge.svg                          private  404    404      200    200       404      404
GET   /runs/<slug>/embed/                             public   200    200      200    200       200      200
GET   /runs/<slug>/embed/                             private  404    404      200    200       404      404
GET   /runs/<slug>/poster/                           public    200    200      200    200       200      200
GET   /runs/<slug>/poster/                           private   404    404      200    200       404      404
GET   /runs/<slug>/qr.svg                            public    200    200      200    200       200      200
GET   /runs/<slug>/qr.svg                            private   404    404      200    200       404      404
GET   /runs/<slug>/start.ics                         public    404    404      404    404       404      404
GET   /runs/<slug>/start.ics                         private   404    404      404    404       404      404
GET   /runs/<slug>/projector/                        public    200    200      200    200       200      200
GET   /runs/<slug>/projector/                        private   404    404      200    200       404      404
GET   /runs/<slug>/own/                              public    200    200      200    200       200      200
GET   /runs/<slug>/own/                              private   404    404      200    200       404      404
GET   /runs/<slug>/notebook.ipynb                    public    200    200      200    200       200      200
GET   /runs/<slug>/notebook.ipynb                    private   404    404      200    200       404      404
GET   /runs/<slug>/try/                              public    200    200      200    200        200      200
GET   /runs/<slug>/try/                              private   404    404      200    200        404      404
POST  /runs/<slug>/try/                              public    done   done     done   done       done     done
POST  /runs/<slug>/try/                              private   404    404      done   done       404      404
GET   /runs/<slug>/try/<trial_id>/                   public    200    200      200    200        200      200
GET   /runs/<slug>/try/<trial_id>/                   private   404    404      200    200        404      404
POST  /runs/<slug>/release/                          public    login  403      403    done       403      login
POST  /runs/<slug>/release/                          private   login  404      403    done       404      login
POST  /runs/<slug>/named/                            public    login  done     done   done      done     login
POST  /runs/<slug>/named/                            private   login  404      done   done      404      login
GET   /runs/<slug>/join/<secret>/                    public    200    200      200    200       200      200
GET   /runs/<slug>/join/<secret>/                    private   200    200      done   done      200      200
POST  /runs/<slug>/join/<secret>/                    public    200    done     done   done      done     200
POST  /runs/<slug>/join/<secret>/                    private   200    done     done   done      done     200
GET   /runs/<slug>/edit/                             public    login  403      403    200       403      login
GET   /runs/<slug>/edit/                             private   login  404      403    200       404      login
POST  /runs/<slug>/edit/                             public    login  403      403    done      403      login
POST  /runs/<slug>/edit/                             private   login  404      403    done      404      login
GET   /runs/<slug>/delete/                           public    login  403      403    200       403      login
GET   /runs/<slug>/delete/                           private   login  404      403    200       404      login
POST  /runs/<slug>/delete/                           public    login  403      403    done      403      login
POST  /runs/<slug>/delete/                           private   login  404      403    done      404      login
GET   /runs/<slug>/texts/                            public    login  403      403    200       403      login
GET   /runs/<slug>/texts/                            private   login  404      403    200       404      login
POST  /runs/<slug>/texts/                            public    login  403      403    done      403      login
POST  /runs/<slug>/texts/                            private   login  404      403    done      404      login
POST  /runs/<slug>/texts/<source>/                   public    login  403      403    done      403      login
POST  /runs/<slug>/texts/<source>/                   private   login  404      403    done      404      login
POST  /runs/<slug>/texts/<source>/field/             public    login  403      403    done      403      login
POST  /runs/<slug>/texts/<source>/field/             private   login  404      403    done      404      login
GET   /runs/<slug>/pictures/<number>.png             public    login  403      403    200       403      login
GET   /runs/<slug>/pictures/<number>.png             private   login  404      403    200       404      login
GET   /runs/<slug>/model/                            public    login  403      403    200       403      login
GET   /runs/<slug>/model/                            private   login  404      403    200       404      login
POST  /runs/<slug>/model/                            public    login  403      403    400       403      login
POST  /runs/<slug>/model/                            private   login  404      403    400       404      login
POST  /runs/<slug>/mix/                              public    login  403      403    done      403      login
POST  /runs/<slug>/mix/                              private   login  404      403    done      404      login
POST  /runs/<slug>/start/                            public    login  403      403    done      403      login
POST  /runs/<slug>/start/                            private   login  404      403    done      404      login
POST  /runs/<slug>/gather/                           public    login  403      403    done      403      login
POST  /runs/<slug>/gather/                           private   login  404      403    done      404      login
POST  /runs/<slug>/extend/                           public    login  403      403    done      403      login
POST  /runs/<slug>/extend/                           private   login  404      403    done      404      login
POST  /runs/<slug>/alerts/                           public    login  403      403    done      403      login
POST  /runs/<slug>/alerts/                           private   login  404      403    done      404      login
POST  /runs/<slug>/roles/                            public    login  403      403    done      403      login
POST  /runs/<slug>/roles/                            private   login  404      403    done      404      login
POST  /runs/<slug>/roles/<role_id>/                  public    login  403      403    done      403      login
POST  /runs/<slug>/roles/<role_id>/                  private   login  404      403    done      404      login
GET   /runs/<slug>/trail/                            public    login  403      403    200       403      login
GET   /runs/<slug>/trail/                            private   login  404      403    200       404      login
GET   /runs/<slug>/role/                             public    login  404      404    404       404      login
GET   /runs/<slug>/role/                             private   login  404      404    404       404      login
POST  /runs/<slug>/role/                             public    login  404      404    404       404      login
POST  /runs/<slug>/role/                             private   login  404      404    404       404      login
POST  /runs/<slug>/announce/                         public    login  403      403    done      403      login
POST  /runs/<slug>/announce/                         private   login  404      403    done      404      login
GET   /runs/<slug>/finish/                           public    login  403      403    200       403      login
GET   /runs/<slug>/finish/                           private   login  404      403    200       404      login
POST  /runs/<slug>/finish/                           public    login  403      403    done      403      login
POST  /runs/<slug>/finish/                           private   login  404      403    done      404      login
POST  /runs/<slug>/request/                          public    login  409      409    409       409      login
POST  /runs/<slug>/request/                          private   login  404      409    409       404      login
POST  /runs/<slug>/requests/<request_id>/            public    login  403      403    done      403      login
POST  /runs/<slug>/requests/<request_id>/            private   login  404      403    done      404      login
GET   /runs/<slug>/rollback/<index>/                 public    login  403      403    200       403      login
GET   /runs/<slug>/rollback/<index>/                 private   login  404      403    200       404      login
POST  /runs/<slug>/rollback/<index>/                 public    login  403      403    done      403      login
POST  /runs/<slug>/rollback/<index>/                 private   login  404      403    done      404      login
GET   /runs/<slug>/repair/                           public    login  403      403    404       403      login
GET   /runs/<slug>/repair/                           private   login  404      403    404       404      login
POST  /runs/<slug>/repair/                           public    login  403      403    404       403      login
POST  /runs/<slug>/repair/                           private   login  404      403    404       404      login
POST  /runs/<slug>/members/                          public    login  403      403    done      403      login
POST  /runs/<slug>/members/                          private   login  404      403    done      404      login
POST  /runs/<slug>/members/<member_id>/              public    login  403      403    done      403      login
POST  /runs/<slug>/members/<member_id>/              private   login  404      403    done      404      login
POST  /runs/<slug>/removed/                          public    login  403      403    done      403      login
POST  /runs/<slug>/removed/                          private   login  404      403    done      404      login
POST  /runs/<slug>/removed/<member_id>/              public    login  403      403    done      403      login
POST  /runs/<slug>/removed/<member_id>/              private   login  404      403    done      404      login
POST  /runs/<slug>/invitations/                      public    login  403      403    200       403      login
POST  /runs/<slug>/invitations/                      private   login  404      403    200       404      login
POST  /runs/<slug>/invitations/<invitation_id>/      public    login  403      403    done      403      login
POST  /runs/<slug>/invitations/<invitation_id>/      private   login  404      403    done      404      login
GET   /runs/<slug>/publish/                          public    login  403      403    200       403      login
GET   /runs/<slug>/publish/                          private   login  404      403    200       404      login
POST  /runs/<slug>/publish/                          public    login  403      403    done      403      login
POST  /runs/<slug>/publish/                          private   login  404      403    done      404      login

POST  /uploads/                                      *         401    201      201    201       201      401
OPTIONS /uploads/                                    *         401    204      204    204       204      401
HEAD  /uploads/<upload_id>/                          *         401    404      204    404       404      401
PATCH /uploads/<upload_id>/                          *         401    404      204    404       404      401
OPTIONS /uploads/<upload_id>/                        *         401    204      204    204       204      401
DELETE /uploads/<upload_id>/                         *         401    404      204    404       404      401

GET   /machines/                                     *         login  200      200    200       200      login
POST  /machines/                                     *         login  200      200    200       200      login
POST  /machines/<machine_id>/                        *         login  404      done   404       404      login
GET   /machines/<machine_id>/limits/                 *         login  404      200    404       404      login
POST  /machines/<machine_id>/limits/                 *         login  404      done   404       404      login
POST  /machines/tokens/                              *         login  200      200    200       200      login
POST  /machines/tokens/<token_id>/                   *         login  404      done   404       404      login
GET   /approve/                                      *         login  200      200    200       200      login
POST  /approve/                                      *         login  done     done   done      done     login
GET   /download/                                     *         200    200      200    200       200      200
GET   /download/<name>                               *         200    200      200    200       200      200

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
POST  /account/page/                                 *          login  done     done   done      done      login
GET   /account/export.json                           *          login  200      200    200       200       login
GET   /account/delete/                               *          login  200      200    200       200       login
POST  /account/delete/                               *          login  done     done   409       409       login
GET   /teams/new/                                    *          login  200      200    200       200       login
POST  /teams/new/                                    *          login  done     done   done      done      login
POST  /teams/leave/                                  *          login  done     done   done      done      login
GET   /teams/<slug>/                                 *          200    200      200    200       200       200
GET   /teams/<slug>/preview.png                      *          200    200      200    200       200       200
POST  /teams/<slug>/link/                            *          login  403      200    403       403       login
GET   /teams/<slug>/join/<secret>/                   *          200    200      200    200       200       200
POST  /teams/<slug>/join/<secret>/                   *          200    done     done   done      done      200
POST  /teams/<slug>/members/<name>/                  *          login  403      done   403       403       login
GET   /api/v1/docs                                   *          200    200      200    200       200       200
POST  /language/                                     *          done   done     done   done      done      done
POST  /theme/                                        *          done   done     done   done      done      done
GET   /styleguide/                                   *          404    404      404    404       404       404
GET   /people/<name>/                                *          200    200      200    200       200       200
GET   /people/<name>/preview.png                     *          200    200      200    200       200       200
GET   /people/<name>/certificate/                    public     200    200      200    200       200       200
GET   /people/<name>/certificate/                    unlisted   404    404      200    200       404       404
GET   /people/<name>/certificate/                    private    404    404      200    200       404       404
GET   /people/<name>/runs/<slug>/                    public     200    200      200    200       200       200
GET   /people/<name>/runs/<slug>/                    unlisted   404    404      200    200       404       404
GET   /people/<name>/runs/<slug>/                    private    404    404      200    200       404       404
GET   /account/notifications/                        *         login  200      200    200       200      login
POST  /account/notifications/                        *         login  done     done   done      done     login
POST  /account/notifications/email/                  *         login  done     done   done      done     login
POST  /account/notifications/webhook/                *         login  200      200    200       200      login
GET   /account/notifications/new.json                *         200    200      200    200       200      200
GET   /account/notifications/confirm/<token>/        *         410    410      410    410       410      410
POST  /account/notifications/confirm/<token>/        *         410    410      410    410       410      410
GET   /account/notifications/stop/<token>/           *         410    410      410    410       410      410
POST  /account/notifications/stop/<token>/           *         410    410      410    410       410      410
POST  /account/password/                             *         login  done     done   done      done     login
POST  /account/outside/<provider_id>/                *         login  404      404    404       404      login
POST  /account/sessions/                             *         login  done     done   done      done     login
GET   /password/<person_id>/<token>/                 *         410    410      410    410       410      410
POST  /password/<person_id>/<token>/                 *         410    410      410    410       410      410
ANY   /admin/**                                      *         login  403      403    403       200      login
GET   /operator/                                     *         login  403      403    403       200      login
POST  /operator/jobs/<number>/again/                 *         login  403      403    403       done     login
GET   /operator/<secret>/                            *         404    404      404    404       404      404
POST  /operator/<secret>/                            *         404    404      404    404       404      404
GET   /help/                                         *         200    200      200    200       200      200
GET   /help/<topic>/                                 *         200    200      200    200       200      200
GET   /healthz                                       *         200    200      200    200       200      200
GET   /readyz                                        *         200    200      200    200       200      200
GET   /metrics                                       *         404    404      404    404       404      404

ANY   /api/v1/                                       *         404    404      404    404       404      404
ANY   /api/v1/openapi.json                           *         200    200      200    200       200      200
GET   /api/v1/agent                                  *         200    200      200    200       200      200
GET   /api/v1/runs                                   *         200    200      200    200       200      200
GET   /api/v1/runs/<slug>                            public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>                            private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/steps                      public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/steps                      private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/leaderboard                public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/leaderboard                private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/ledger                     public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/ledger                     private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/plan                       public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/plan                       private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/links                      public    401    200      200    200       200      401
GET   /api/v1/runs/<slug>/links                      private   401    404      200    200       404      401
GET   /api/v1/runs/<slug>/snapshots                  public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/snapshots                  private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/verdict                    public    403    403      403    200       403      403
GET   /api/v1/runs/<slug>/verdict                    private   404    404      403    200       404      404
GET   /api/v1/runs/<slug>/facts                      public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/facts                      private   404    404      200    200       404      403
GET   /api/v1/runs/<slug>/release/<name>             public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/release/<name>             private   404    404      200    200       404      403

POST  /api/v1/devices                                *         200    200      200    200       200      200
POST  /api/v1/devices/poll                           *         401    401      200    401       401      401
POST  /api/v1/machines                               *         401    200      200    200       200      401
POST  /api/v1/runs/<slug>/credential                 public    401    200      200    200       200      403
POST  /api/v1/runs/<slug>/credential                 private   401    404      200    200       404      403
POST  /api/v1/relays/credential                      *         401    403      403    403       200      403
GET   /api/v1/files/averages/<entry>/<span>          public    401    200      200    200       200      403
GET   /api/v1/files/averages/<entry>/<span>          private   401    404      200    200       404      403
GET   /api/v1/files/models/<digest>                  public    401    404      404    404       404      403
GET   /api/v1/files/models/<digest>                  private   401    404      404    404       404      403
GET   /api/v1/files/shards/<digest>                  public    401    200      200    200       200      403
GET   /api/v1/files/shards/<digest>                  private   401    404      200    200       404      403
GET   /api/v1/files/snapshots/<digest>               public    401    200      200    200       200      403
GET   /api/v1/files/snapshots/<digest>               private   401    404      200    200       404      403
GET   /api/v1/files/tokenizer                        public    401    200      200    200       200      403
GET   /api/v1/files/tokenizer                        private   401    404      200    200       404      403
GET   /api/v1/files/tokenizer/<name>                 public    401    200      200    200       200      403
GET   /api/v1/files/tokenizer/<name>                 private   401    404      200    200       404      403
GET   /api/v1/runs/<slug>/states/<made>              public    200    200      200    200       200      403
GET   /api/v1/runs/<slug>/states/<made>              private   404    404      200    200       404      403
PUT   /api/v1/runs/<slug>/snapshots/<step>           public    401    200      200    200       200      403
PUT   /api/v1/runs/<slug>/snapshots/<step>           private   401    404      200    200       404      403
"""


class Row(NamedTuple):
    method: str
    address: str
    visibility: str
    answers: dict[str, str]

    def __str__(self) -> str:
        return f"{self.method} {self.address} {self.visibility}"


def rows() -> list[Row]:
    """Return the table's rows, plus those for the further requesters, unlisted runs and runs by request."""
    header, *lines = [line.split() for line in TABLE.splitlines() if line.strip()]
    assert tuple(header) == REQUESTERS
    own = {tuple(line[:3]) for line in lines}
    like_public = [line for line in lines if line[2] == "public" and (line[0], line[1], "unlisted") not in own]
    lines += [[method, address, "unlisted", *answers] for method, address, _, *answers in like_public]
    written = [_row(line[0], line[1], line[2], dict(zip(REQUESTERS, line[3:], strict=True))) for line in lines]
    return [*written, *(_by_request(row) for row in written if row.visibility == "public")]


def _by_request(row: Row) -> Row:
    others = BY_REQUEST.get(f"{row.method} {row.address}", {})
    return row._replace(visibility="request", answers=row.answers | others)


def _row(method: str, address: str, visibility: str, answers: dict[str, str]) -> Row:
    for name, further in FURTHER.items():
        meant = further.but.get(f"{method} {address}", further.like)
        answers[name] = answers.get(meant) or meant.split()[WRITTEN.index(visibility)]
    return Row(method, address, visibility, answers)
