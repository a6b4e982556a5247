"""How checks run: each in bounded time, independent of the others, and only if what they need is ok."""

import asyncio
from collections.abc import Callable

import pytest

from tarsy_scoring.doctor.checks import LIMIT_S, Check, CheckFault, CheckResult, NotChecked, run_checks
from tarsy_scoring.errors import ConfigurationError, SettingMissing, StartRefused, TimelineUnavailable


async def fits() -> str:
    return "it fits"


async def fails() -> str:
    raise CheckFault("it is too small", "make it larger")


async def refuses() -> str:
    raise StartRefused("the database is not migrated (0001); run: tarsy-scoring migrate")


async def reports_without_advice() -> str:
    raise TimelineUnavailable("cannot read the session s from TARSy's API at t:1")


async def reports_a_setting() -> str:
    raise ConfigurationError("SCORING_TIMELINE_DIR: /nowhere is not a folder")


async def does_not_apply() -> str:
    raise NotChecked("it is off")


async def lacks_a_setting() -> str:
    raise SettingMissing("SCORING_TIMELINE_DIR is not set")


async def breaks() -> str:
    raise KeyError("secret")


async def hangs() -> str:
    await asyncio.Event().wait()
    raise AssertionError


ADVICE = "do what it says, or look into the log of that system"


async def test_every_check_has_its_own_result() -> None:
    """An error of one check, foreseen or not, costs no other its result, and is not quoted if it is unforeseen."""
    looks = {"a": fits, "b": fails, "c": refuses, "d": does_not_apply, "e": breaks, "f": fits}
    looks |= {"g": reports_without_advice, "h": reports_a_setting, "i": lacks_a_setting}

    results = await run_checks([Check(name, look) for name, look in looks.items()])

    assert results == [
        CheckResult("a", "ok", "it fits"),
        CheckResult("b", "failed", "it is too small", "make it larger"),
        CheckResult("c", "failed", "the database is not migrated (0001); run: tarsy-scoring migrate", ADVICE),
        CheckResult("d", "skipped", "it is off"),
        CheckResult("e", "failed", "the check itself failed (KeyError)", "report it as a fault of doctor"),
        CheckResult("f", "ok", "it fits"),
        CheckResult(
            "g",
            "failed",
            "cannot read the session s from TARSy's API at t:1",
            ADVICE,
        ),
        CheckResult(
            "h",
            "failed",
            "SCORING_TIMELINE_DIR: /nowhere is not a folder",
            "correct the setting; docs/configuration.md describes it",
        ),
        CheckResult("i", "skipped", "SCORING_TIMELINE_DIR is not set"),
    ]


@pytest.mark.parametrize("first", [fails, does_not_apply], ids=["failed", "skipped"])
async def test_a_check_is_skipped_unless_what_it_needs_is_ok(first: Callable[..., str]) -> None:
    checks = [Check("first", first), Check("second", fits, ["first"]), Check("third", fits, ["second"])]

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
