"""The ASGI application. Django serves the pages and the API; WebSockets go to `coordination` and `web.feed`."""

import os
import warnings
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

http = get_asgi_application()  # sets up Django, which must happen before models are imported

from coordination.sockets.consumer import AgentConsumer  # noqa: E402
from server.body_limits import LengthGuard  # noqa: E402
from server.websocket_connections import AGENTS  # noqa: E402
from web.feed.consumer import WatcherConsumer  # noqa: E402

METRICS = "/metrics"

# whitenoise reads an entire style sheet before sending any of it, which causes this warning. Our own downloads are
# streamed (web.http.files).
warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    """Close a WebSocket to an unknown address. Without this, Channels would log a traceback each time."""
    del scope, receive
    await send({"type": "websocket.close"})


async def http_by_any_name(scope: Any, receive: Any, send: Any) -> None:
    """Answer HTTP requests. Serve `/metrics` under any host name, although Django rejects unknown names.

    Prometheus may reach this process by a name on its own network, such as `site-1:8000`. This is safe: the response
    contains no links, and only clients with an allowed address or token may read it.
    """
    if scope["path"] == METRICS:
        headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope = {**scope, "headers": [*headers, (b"host", b"localhost")]}
    await http(scope, receive, send)


# Channels' stubs expect Channels' own pattern and application types.
sockets: list[Any] = [
    path(AGENTS.removeprefix("/"), AgentConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/runs/<slug:slug>/", WatcherConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path(r"", nowhere),  # type: ignore[arg-type]
]
application = ProtocolTypeRouter({"http": LengthGuard(http_by_any_name), "websocket": URLRouter(sockets)})
