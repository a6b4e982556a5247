"""The fixture that most integration tests begin with."""

from collections.abc import AsyncIterator

import pytest

from builders import Scoring, open_scoring


@pytest.fixture
async def scoring(database_url: str) -> AsyncIterator[Scoring]:
    """Inbox, leases, store and outbox on a database of the test's own."""
    async with open_scoring(database_url) as opened:
        yield opened
