"""WebSocket addresses of agents and relays."""

from django.urls import path

from coordination.sockets.consumer import AgentConsumer

websocket_urlpatterns = [path("ws/agents/", AgentConsumer.as_asgi())]  # type: ignore[arg-type]  # an ASGI application, as Channels has it
