"""How a machine gets approved in a browser: it asks for a code, shows it, and polls (the shape of RFC 8628)."""

from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from ninja import Router

from accounts import devices
from accounts.keys import site_key
from accounts.models import Machine
from peer_agent.protocol.credentials import public_bytes
from web.api.schemas import DeviceIn, DeviceOut, FaultOut, MachineOut, PollIn
from web.http import rate_limits
from web.http.requester import address_of, ip_of

router = Router(tags=["agents"])
ASKED: dict[Any, Any] = {200: DeviceOut, **dict.fromkeys((400, 403, 422, 429), FaultOut)}
POLLED: dict[Any, Any] = {200: MachineOut, **dict.fromkeys((400, 401, 403, 410, 422, 428, 429), FaultOut)}


@router.post("devices", response=ASKED)
def ask(request: HttpRequest, body: DeviceIn) -> dict[str, Any]:
    """A code to show to a person, who approves this machine at `verification_uri`."""
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


@router.post("devices/poll", response=POLLED)
def poll(request: HttpRequest, body: PollIn) -> dict[str, str]:
    """What became of the request; the machine's name here, once, after a person has approved it."""
    asked = devices.asked_with(body.device_code)
    rate_limits.spend("polls", str(asked.request.pk))
    machine = devices.collect_machine(
        asked=asked, proof=bytes.fromhex(body.proof), url=approval_url(request), now=timezone.now()
    )
    key = public_bytes(site_key()).hex()
    return {"machine": machine.peer_id, "person": machine.person.username, "site_key": key}


def approval_url(request: HttpRequest) -> str:
    """Where people approve machines, as the asker knows this site."""
    return request.build_absolute_uri(reverse("web:approve"))
