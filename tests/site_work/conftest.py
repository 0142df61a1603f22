"""The Hub of tests, here too."""

from tests.publishing.conftest import hub, short_pauses

__all__ = ["hub", "short_pauses"]
