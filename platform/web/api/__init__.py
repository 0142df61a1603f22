"""The API under /api/v1/: lists and facts for programs, and requests of agents and relays."""

from web.api.service import api

__all__ = ["api"]
