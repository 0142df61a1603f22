"""How to get the agent: the wheel that setup has built, and lines to copy for every system."""

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.views.decorators.http import require_safe

from peer_agent.protocol.errors import Fault
from web.agent_package import PYTORCH_CPU, current_wheel, install_lines
from web.http.faults import status_of
from web.http.files import send_file
from web.http.requester import missing

WHEEL_TYPE = "application/zip"


@require_safe
def download_page(request: HttpRequest) -> HttpResponse:
    """The wheel and how to install it; what the operator should do where there is none."""
    install = install_lines(request)
    if install is None:
        fault = Fault.of("E321")
        return render(request, "web/site/install.html", {"fault": fault}, status=status_of(fault.code))
    return render(request, "web/site/install.html", {"install": install, "cpu_index": PYTORCH_CPU})


@require_safe
def wheel_file(request: HttpRequest, name: str) -> HttpResponseBase:
    """The wheel itself, by its name of now; pip checks it against the digest in the line."""
    wheel = current_wheel()
    if wheel is None or wheel.name != name:
        raise missing(Fault.of("E321") if wheel is None else Fault.of("E322", name=name))
    return send_file(request, wheel.path, sha256=wheel.sha256, name=wheel.name, kind=WHEEL_TYPE)
