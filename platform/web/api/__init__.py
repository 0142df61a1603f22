"""The API under /api/v1/: lists and facts for programs, and the requests that agents and relays make."""

from web.api.service import api

__all__ = ["api"]
