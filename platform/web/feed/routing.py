"""The feed's WebSocket address."""

from django.urls import path

from web.feed.consumer import WatcherConsumer

websocket_urlpatterns = [path("ws/runs/<slug:slug>/", WatcherConsumer.as_asgi())]  # type: ignore[arg-type]  # an ASGI application, as Channels has it
