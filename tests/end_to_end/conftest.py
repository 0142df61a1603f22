"""What the journeys share: real English, small enough to be prepared in a second."""

import pytest

from demo.corpus import python_text


@pytest.fixture(scope="session")
def english() -> str:
    """About 150,000 characters."""
    return python_text()[:150_000]
