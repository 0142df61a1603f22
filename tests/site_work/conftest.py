"""The Hub fixture of tests/publishing, for tests of the site's child processes."""

from tests.publishing.conftest import hub, short_pauses

__all__ = ["hub", "short_pauses"]
