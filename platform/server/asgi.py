"""The ASGI application: pages and API through Django behind the guard of lengths, sockets to coordination and feed."""

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
    """A socket at an address where there is none. Channels would raise, and each time fill the log with a traceback."""
    del scope, receive
    await send({"type": "websocket.close"})


# Channels' stubs want its own kind of pattern, and have its own kind of application.
sockets: list[Any] = [
    path(AGENTS.removeprefix("/"), AgentConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/runs/<slug:slug>/", WatcherConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path(r"", nowhere),  # type: ignore[arg-type]
]
application = ProtocolTypeRouter({"http": LengthGuard(http), "websocket": URLRouter(sockets)})
