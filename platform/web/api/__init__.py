"""The API under /api/v1/: lists and facts for programs, and what agents and relays ask of the site."""

from web.api.service import api

__all__ = ["api"]
