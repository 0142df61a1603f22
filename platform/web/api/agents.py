"""The API for agents and relays: enrolment, approval in a browser, and credentials valid for an hour."""

import time
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from ninja import Router

from accounts import devices
from accounts.keys import site_key
from accounts.models import Machine
from accounts.services import ASKED_FOR, enrol_machine, issue_credential, verified_request
from peer_agent import __version__
from peer_agent.protocol.credentials import Role, public_bytes
from peer_agent.protocol.errors import Problem
from peer_agent.protocol.identifiers import ANY_RUN, RunId
from peer_agent.protocol.messages import PROTOCOL
from runs.access import access_joinable_run, require_unremoved
from web.agent_package import install_lines
from web.api.identity import bearer_secret, encoded
from web.api.schemas import AgentOut, CredentialOut, DeviceIn, DeviceOut, FaultOut, MachineIn, MachineOut, PollIn, Slug
from web.http import rate_limits
from web.http.requester import address_of, ip_of, site_of

router = Router(tags=["agents"])
SIGNATURE = "X-Manyhands-Signature"
CONTROL = "/ws/agents/"
ASKING: dict[Any, Any] = dict.fromkeys((400, 401, 403, 404, 409, 422, 429), FaultOut)
SIGNED_BODY = {
    "parameters": [
        {
            "in": "header",
            "name": SIGNATURE,
            "required": True,
            "schema": {"type": "string"},
            "description": "The machine's Ed25519 signature of the raw body, in hexadecimal digits.",
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["machine", "role", "issued_at"],
                    "properties": {
                        "machine": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
                        "role": {"enum": [role.value for role in ASKED_FOR]},
                        "issued_at": {"type": "number", "description": "seconds of UTC"},
                        "protocol": {"type": "integer", "description": f"{PROTOCOL}; without it 1 is meant"},
                    },
                }
            }
        },
    },
}
ASKED: dict[Any, Any] = {200: DeviceOut, **dict.fromkeys((400, 403, 422, 429), FaultOut)}
POLLED: dict[Any, Any] = {200: MachineOut, **dict.fromkeys((400, 401, 403, 410, 422, 428, 429), FaultOut)}


@router.get("agent", response={200: AgentOut})
def offered_agent(request: HttpRequest) -> dict[str, Any]:
    """Return the version of the agent that this site offers, and the command lines for updating an older one."""
    install = install_lines(request)
    return {
        "version": install.wheel.version if install else __version__,
        "protocol": PROTOCOL,
        "url": install.url if install else None,
        "sha256": install.wheel.sha256 if install else None,
        "size": install.wheel.size if install else None,
        "signature": install.signature if install else None,
        "upgrade_pip": install.upgrade_pip if install else None,
        "upgrade_uv": install.upgrade_uv if install else None,
    }


@router.post("machines", response={200: MachineOut, **dict.fromkeys((400, 401, 403, 422), FaultOut)})
def enrol(request: HttpRequest, body: MachineIn) -> dict[str, str]:
    """Enroll a machine. The request carries a one-time token from the machines page, as a Bearer token."""
    machine = enrol_machine(
        secret=bearer_secret(request),
        name=body.name,
        public_key=bytes.fromhex(body.public_key),
        proof=bytes.fromhex(body.proof),
        kind=Machine.Kind(body.kind),
    )
    return _approved(machine)


@router.post("runs/{slug:slug}/credential", response={200: CredentialOut, **ASKING}, openapi_extra=SIGNED_BODY)
def run_credential(request: HttpRequest, slug: Slug) -> dict[str, Any]:
    """Issue a credential for one run. `X-Manyhands-Signature` carries the machine's signature of the raw body."""
    machine, role = _asker(request)
    run = access_joinable_run(slug=slug, viewer=machine.person)
    require_unremoved(run, machine)
    if role == Role.RELAY:
        _require_relay(machine)
    return _answer(request, machine, role, run.run_id, slug=run.slug, title=run.title)


@router.post("relays/credential", response={200: CredentialOut, **ASKING}, openapi_extra=SIGNED_BODY)
def relay_credential(request: HttpRequest) -> dict[str, Any]:
    """Issue a credential for all of this site's runs to a relay owned by an operator."""
    machine, role = _asker(request)
    if role != Role.RELAY:
        raise Problem.of("E213")
    _require_relay(machine)
    return _answer(request, machine, role, ANY_RUN, slug="", title="")


def _approved(machine: Machine) -> dict[str, str]:
    key = public_bytes(site_key()).hex()
    return {"machine": machine.peer_id, "person": machine.person.username, "site_key": key}


def _asker(request: HttpRequest) -> tuple[Machine, Role]:
    signature = request.headers.get(SIGNATURE, "")
    machine, role = verified_request(
        body=request.body,
        signature=signature,
        site=site_of(request),
        now=time.time(),
        upgrade=lambda: _upgrade_line(request),
    )
    rate_limits.spend("credentials", str(machine.pk))
    return machine, role


def _upgrade_line(request: HttpRequest) -> str:
    install = install_lines(request)
    return install.upgrade_pip if install else request.build_absolute_uri(reverse("web:download"))


def _require_relay(machine: Machine) -> None:
    """Raise Problem E213 unless an operator owns the relay, since other people's gradients pass through it."""
    if machine.kind != Machine.Kind.RELAY or not machine.person.is_staff:
        raise Problem.of("E213")


def _answer(request: HttpRequest, machine: Machine, role: Role, run: RunId, *, slug: str, title: str) -> dict[str, Any]:
    now = time.time()
    credential = issue_credential(machine=machine, run=run, role=role, now=int(now))
    return {
        "credential": encoded(credential),
        "site_key": public_bytes(site_key()).hex(),
        "time": now,
        "run": run,
        "control": f"{'wss' if request.is_secure() else 'ws'}://{request.get_host()}{CONTROL}",
        "slug": slug,
        "title": title,
    }


# Approving a machine in a browser: the machine asks for a code, shows it, and polls (in the form of RFC 8628)


@router.post("devices", response=ASKED, summary="Request approval")
def ask(request: HttpRequest, body: DeviceIn) -> dict[str, Any]:
    """Issue a code. A person approves this machine by typing the code at `verification_uri`."""
    rate_limits.spend("requests of machines", address_of(request))
    asked = devices.request_approval(
        name=body.name,
        public_key=bytes.fromhex(body.public_key),
        system=body.system,
        kind=Machine.Kind(body.kind),
        run=body.run,
        address=ip_of(request),
        now=timezone.now(),
    )
    url, code = approval_url(request), asked.request.shown_code
    return {
        "device_code": asked.device_code,
        "user_code": code,
        "verification_uri": url,
        "verification_uri_complete": f"{url}?code={code}",
        "expires_in": int(devices.LIFETIME.total_seconds()),
        "interval": devices.INTERVAL_S,
    }


@router.post("devices/poll", response=POLLED, summary="Check approval")
def poll(request: HttpRequest, body: PollIn) -> dict[str, str]:
    """Return the machine's id, once, after a person has approved the machine.

    Otherwise, answer with E220 if the request is still unanswered, E221 if it was declined, or E222 if the code has
    expired or was already used.
    """
    asked = devices.asked_with(body.device_code)
    rate_limits.spend("polls", str(asked.request.pk))
    machine = devices.collect_machine(
        asked=asked, proof=bytes.fromhex(body.proof), url=approval_url(request), now=timezone.now()
    )
    return _approved(machine)


def approval_url(request: HttpRequest) -> str:
    return request.build_absolute_uri(reverse("web:approve"))
