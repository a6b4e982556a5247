"""What most tests here begin with."""

from collections.abc import AsyncIterator

import pytest

from builders import Scoring, open_scoring


@pytest.fixture
async def scoring(database_url: str) -> AsyncIterator[Scoring]:
    """Requests, scores, leases and events on a database of their own."""
    async with open_scoring(database_url) as opened:
        yield opened
