"""The installation that every test here starts processes of."""

import pytest

from processes import Service, service

__all__ = ["service"]


@pytest.fixture(autouse=True)
def lost_soon(service: Service) -> None:
    """
    What a process held that was killed goes to others after seconds.

    Where a test counts attempts or calls its leases are longer: a machine that stands still must not cost one.
    """
    service.env |= {"SCORING_LEASE_S": "2", "SCORING_KAFKA_SESSION_TIMEOUT_S": "6", "SCORING_DRAIN_TIMEOUT_S": "10"}
