"""The Hub fixture of tests/publishing, shared here."""

from tests.publishing.conftest import hub, short_pauses

__all__ = ["hub", "short_pauses"]
