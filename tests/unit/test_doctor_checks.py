"""How checks run: each in bounded time, independent of the others, and only if what they need is ok."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tarsy_scoring.doctor.checks import (
    LIMIT_S,
    LOG_ADVICE,
    SETTING_ADVICE,
    Check,
    CheckFault,
    CheckResult,
    NotChecked,
    run_checks,
)
from tarsy_scoring.errors import ConfigurationError, SettingMissing, TimelineUnavailable

Look = Callable[[], Awaitable[str]]


async def fits() -> str:
    return "it fits"


def raises(error: Exception) -> Look:
    async def look() -> str:
        raise error

    return look


async def hangs() -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def test_every_check_has_its_own_result() -> None:
    """An error of one check, foreseen or not, costs no other its result, and is not quoted if it is unforeseen."""
    fault, broken = CheckFault("it is too small", "make it larger"), KeyError("secret")
    cases = [
        (fits, ("ok", "it fits", None)),
        (raises(fault), ("failed", "it is too small", "make it larger")),
        (raises(TimelineUnavailable("away")), ("failed", "away", LOG_ADVICE)),
        (raises(ConfigurationError("no folder")), ("failed", "no folder", SETTING_ADVICE)),
        (raises(NotChecked("it is off")), ("skipped", "it is off", None)),
        (raises(SettingMissing("not set")), ("skipped", "not set", None)),
        (raises(broken), ("failed", "the check itself failed (KeyError)", "report it as a fault of doctor")),
        (fits, ("ok", "it fits", None)),
    ]

    results = await run_checks([Check(str(n), look) for n, (look, _) in enumerate(cases)])

    assert [(r.state, r.found, r.advice) for r in results] == [expected for _, expected in cases]


@pytest.mark.parametrize("error", [CheckFault("a", "b"), NotChecked("off")], ids=["failed", "skipped"])
async def test_a_check_is_skipped_unless_what_it_needs_is_ok(error: Exception) -> None:
    checks = [Check("first", raises(error)), Check("second", fits, ["first"]), Check("third", fits, ["second"])]

    _, *results = await run_checks(checks)

    assert results == [
        CheckResult("second", "skipped", "needs: first"),
        CheckResult("third", "skipped", "needs: second"),
    ]


async def test_a_check_that_hangs_ends(let_pass: Callable[[float], None]) -> None:
    running = asyncio.create_task(run_checks([Check("first", hangs), Check("second", fits)]))
    await asyncio.sleep(0)
    let_pass(LIMIT_S + 1)

    first, second = await running

    assert (first.state, first.found, second.state) == ("failed", "no answer within 10 s", "ok")
    assert first.advice
