"""The clock of an attempt stands while the attempt waits."""

from collections.abc import Callable

import pytest

from tarsy_scoring.judge.clock import AttemptClock


async def test_waits_are_not_spent(let_pass: Callable[[float], None]) -> None:
    clock = AttemptClock(600, spent_s=10)

    let_pass(100)
    with clock.waiting():
        let_pass(1000)
        assert clock.left_s == pytest.approx(490, abs=5)
    let_pass(50)

    found = (clock.spent_s, clock.left_s, clock.elapsed_s)
    assert found == pytest.approx((160, 440, 1160), abs=5)


async def test_waits_that_overlap_count_once(let_pass: Callable[[float], None]) -> None:
    """Several tasks of an attempt wait at once; the clock stands until the last has what it waits for."""
    clock = AttemptClock(600)

    with clock.waiting():
        let_pass(10)
        with clock.waiting():
            let_pass(20)
        let_pass(30)

    assert (clock.spent_s, clock.elapsed_s) == pytest.approx((0, 60), abs=5)
