"""The installation that every test here starts processes of."""

import pytest

from processes import Service, service

__all__ = ["service"]


@pytest.fixture(autouse=True)
def short_leases(service: Service) -> None:
    """
    Short leases, so that the scores of a killed process are taken back after seconds.

    Tests that count attempts or calls set longer leases: a pause of the machine must not cost an attempt.
    """
    service.env |= {"SCORING_LEASE_S": "4", "SCORING_KAFKA_SESSION_TIMEOUT_S": "6", "SCORING_DRAIN_TIMEOUT_S": "10"}
