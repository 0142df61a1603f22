"""The ASGI application: pages and API through Django behind the length guard; sockets to coordination and feed."""

import os
import warnings
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path, re_path

http = get_asgi_application()  # sets Django up, before models are imported

from coordination.sockets.consumer import AgentConsumer  # noqa: E402
from server.body_limits import LengthGuard  # noqa: E402
from server.websocket_connections import AGENTS  # noqa: E402
from web.feed.consumer import WatcherConsumer  # noqa: E402

# whitenoise reads a style sheet whole before it is sent; our own downloads are streamed (web.http.files).
warnings.filterwarnings("ignore", message="StreamingHttpResponse must consume synchronous iterators")


async def nowhere(scope: Any, receive: Any, send: Any) -> None:
    """Close a socket at an unknown address. Channels would raise, and log a traceback each time."""
    del scope, receive
    await send({"type": "websocket.close"})


# Channels' stubs expect its own pattern and application types.
sockets: list[Any] = [
    path(AGENTS.removeprefix("/"), AgentConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/runs/<slug:slug>/", WatcherConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path(r"", nowhere),  # type: ignore[arg-type]
]
application = ProtocolTypeRouter({"http": LengthGuard(http), "websocket": URLRouter(sockets)})
