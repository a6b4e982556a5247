"""When a worker may take back expired scores."""

import pytest

from tarsy_scoring.scoring.takeover_guard import TakeoverGuard

LEASE_S = 60


@pytest.mark.parametrize(
    ("renewed_at", "asked_at", "settled"),
    [
        pytest.param([], 1000, False, id="never-renewed"),
        pytest.param([0, 20, 40], 59, False, id="less-than-a-lease-after-the-start"),
        pytest.param([0, 20, 40], 60, True, id="a-lease-after-the-start"),
        pytest.param([0, 20, 40, 60], 150, False, id="nothing-renewed-since-an-outage"),
        pytest.param([0, 20, 40, 60, 150], 150, False, id="renewed-after-an-outage"),
        pytest.param([0, 20, 40, 60, 150, 170, 190], 209, False, id="less-than-a-lease-after-an-outage"),
        pytest.param([0, 20, 40, 60, 150, 170, 190], 210, True, id="a-lease-after-an-outage"),
        pytest.param([0, 20, 40, 60, 100], 100, False, id="one-renewal-failed"),
        pytest.param([0, 20, 40, 60, 89], 89, True, id="one-renewal-took-long"),
        pytest.param([0, 20, 40, 60, 150, 170, 220], 220, False, id="two-outages"),
    ],
)
def test_contact_is_settled_one_lease_after_its_last_break(
    renewed_at: list[float], asked_at: float, settled: bool
) -> None:
    contact = TakeoverGuard(LEASE_S)
    for at in renewed_at:
        contact.renewed(at)

    assert contact.is_settled(asked_at) is settled
