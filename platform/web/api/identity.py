"""The sender of an API request: a user with a session or a personal token, or a machine with a credential."""

import base64
import binascii
import time

import msgspec
from django.http import HttpRequest

from accounts.keys import site_key
from accounts.selectors import working_machine
from accounts.services import person_of_token
from peer_agent.protocol.credentials import Credential, Signed, public_bytes, verify
from peer_agent.protocol.errors import Fault, Problem
from runs.access import Viewer, access_run
from runs.models import Run
from web.http.requester import site_of

BEARER, CREDENTIAL = "Bearer ", "Credential "


def viewer_of(request: HttpRequest) -> Viewer:
    """Return the user that a token or session belongs to, or an anonymous viewer.

    Raises Problem E215 if the token is invalid.
    """
    header = request.headers.get("Authorization", "")
    if header.startswith(BEARER):
        return person_of_token(secret=header.removeprefix(BEARER).strip())
    return request.user


def run_for(request: HttpRequest, slug: str) -> Run:
    """Return the requested run, for a person who may see it or a machine whose credential covers it.

    Raises Problem E305 if there is no such run or the requester may not see it, E215 if a token is invalid, and E213 if
    a credential is for a different run. Also raises the Problems of `credential_in`.
    """
    header = request.headers.get("Authorization", "")
    if not header.startswith(CREDENTIAL):
        return access_run(slug=slug, viewer=viewer_of(request))
    credential = credential_of(request)
    run = access_run(slug=slug, viewer=working_machine(credential.machine, site="").person)
    require_run(credential, run)
    return run


def bearer_secret(request: HttpRequest) -> str:
    """Return the secret in a Bearer header. Raises Problem E215 if there is none."""
    header = request.headers.get("Authorization", "")
    if not header.startswith(BEARER):
        raise Problem.of("E215")
    return header.removeprefix(BEARER).strip()


def credential_of(request: HttpRequest) -> Credential:
    """Return the request's valid credential. Raises the Problems of `credential_in`."""
    return credential_in(request.headers.get("Authorization"), site=site_of(request))


def credential_in(header: str | None, *, site: str) -> Credential:
    """Return the valid credential of a machine from a header.

    Raises Problem E201 if the credential is missing or not from this site, E202 if it has expired, E203 if it is not
    valid yet, E101 if the machine is unknown, or E214 if it was revoked.
    """
    credential = verify(_signed(header), public_bytes(site_key()), time.time())
    if isinstance(credential, Fault):
        raise Problem(credential)
    working_machine(credential.machine, site=site)
    return credential


def require_run(credential: Credential, run: Run) -> None:
    """Raise Problem E213 if the credential does not cover the run."""
    if not credential.covers(run.run_id):
        raise Problem.of("E213")


def encoded(signed: Signed) -> str:
    """Return a signed struct in base64, for JSON and headers."""
    return base64.b64encode(msgspec.msgpack.encode(signed)).decode()


def _signed(header: str | None) -> Signed:
    if header is None or not header.startswith(CREDENTIAL):
        raise Problem.of("E201")
    try:
        data = base64.b64decode(header.removeprefix(CREDENTIAL).strip(), validate=True)
        return msgspec.msgpack.decode(data, type=Signed)
    except (binascii.Error, msgspec.DecodeError, ValueError) as error:
        raise Problem.of("E201") from error
