"""Runs checks one after the other: each in bounded time, and only if the checks that it needs are ok."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.errors import ConfigurationError, ScoringError, SettingMissing
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, why_away

LIMIT_S = 10.0
LOG_ADVICE = "do what it says, or look into the log of that system"
SETTING_ADVICE = "correct the setting; docs/configuration.md describes it"


class CheckFault(Exception):
    """A check found what does not fit; `advice` says what helps."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.advice = advice


class NotChecked(Exception):
    """A check cannot be made, or does not apply, for the reason given."""


@dataclass(frozen=True, slots=True)
class Check:
    """
    One check.

    Args:
        look: Returns what it found, where that fits. Raises `CheckFault` or `NotChecked`, or lets the error of the
            system or of a missing setting through.
        needs: Names of earlier checks without which this one can find nothing.
    """

    name: str
    look: Callable[[], Awaitable[str]]
    needs: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CheckResult:
    """A check's result; `advice` is None where nothing has to be done."""

    name: str
    state: Literal["ok", "failed", "skipped"]
    found: str
    advice: str | None = None


async def run_checks(checks: Sequence[Check]) -> list[CheckResult]:
    """Run one system's checks in order. Raises nothing: every error is a result."""
    results: dict[str, CheckResult] = {}
    for check in checks:
        lacking = [name for name in check.needs if results[name].state != "ok"]
        if lacking:
            results[check.name] = CheckResult(check.name, "skipped", f"needs: {', '.join(lacking)}")
        else:
            results[check.name] = await _run(check)
    return list(results.values())


async def _run(check: Check) -> CheckResult:
    def failed(found: str, advice: str) -> CheckResult:
        return CheckResult(check.name, "failed", found, advice)

    try:
        async with asyncio.timeout(LIMIT_S):
            return CheckResult(check.name, "ok", await check.look())
    except (NotChecked, SettingMissing) as reason:  # the check `settings` fails where one is missing
        return CheckResult(check.name, "skipped", str(reason))
    except CheckFault as fault:
        return failed(str(fault), fault.advice)
    except TimeoutError:
        return failed(f"no answer within {LIMIT_S:g} s", "look for load, for locks and for a closed network")
    except (ScoringError, DatabaseAway) as error:
        is_setting = isinstance(error, ConfigurationError)
        return failed(str(error), SETTING_ADVICE if is_setting else LOG_ADVICE)
    except DRIVER_ERRORS as error:
        return failed(why_away(error), LOG_ADVICE)
    except Exception as error:  # noqa: BLE001 - one check must not cost the results of the others
        return failed(f"the check itself failed ({type(error).__name__})", "report it as a fault of doctor")
