"""Runs checks one after the other: each in bounded time, and only if the checks that it needs are ok."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy_scoring.errors import ConfigurationError, ScoringError, SettingMissing
from tarsy_scoring.postgres.database import DatabaseAway
from tarsy_scoring.postgres.failures import DRIVER_ERRORS, why_away

State = Literal["ok", "failed", "skipped"]

LIMIT_S = 10.0
# The messages of this service end with their advice, behind a semicolon or a colon.
_ADVICE = re.compile(r"(?s)(.+)(?:; |: (?=check |look ))(.+)")


class Fault(Exception):
    """
    What a check found does not fit.

    Args:
        advice: What an operator can do about it.
    """

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
        look: Returns what it found, where that fits. Raises `Fault` or `NotChecked`, or lets the error of the
            system or of a missing setting through.
        needs: Names of earlier checks without which this one can find nothing.
        target: The system that it looks at, with its place; without secrets.
    """

    name: str
    look: Callable[[], Awaitable[str]]
    needs: Sequence[str] = ()
    target: str = "this process"


@dataclass(frozen=True, slots=True)
class Result:
    """
    The result of one check.

    Args:
        found: For a skipped check the reason. May have several lines.
        advice: None where nothing has to be done. May have several lines.
    """

    name: str
    state: State
    found: str
    advice: str | None = None


async def run_checks(checks: Sequence[Check]) -> list[Result]:
    """Run the checks of one system in their order. Raises nothing: every error is a result."""
    results: dict[str, Result] = {}
    for check in checks:
        lacking = [name for name in check.needs if results[name].state != "ok"]
        if lacking:
            results[check.name] = Result(check.name, "skipped", f"needs: {', '.join(lacking)}")
        else:
            results[check.name] = await _run(check)
    return list(results.values())


async def _run(check: Check) -> Result:
    try:
        async with asyncio.timeout(LIMIT_S):
            return Result(check.name, "ok", await check.look())
    except (NotChecked, SettingMissing) as reason:  # the check of the settings fails where one is missing
        return Result(check.name, "skipped", str(reason))
    except Fault as fault:
        return Result(check.name, "failed", str(fault), fault.advice)
    except TimeoutError:
        found = f"no answer of {check.target} within {LIMIT_S:g} s"
        return failure(check.name, f"{found}; look for load, for locks and for a closed network")
    except ConfigurationError as error:
        return failure(check.name, str(error))
    except (ScoringError, DatabaseAway) as error:
        return failure(check.name, str(error), f"look into the log of {check.target}")
    except DRIVER_ERRORS as error:
        return failure(check.name, why_away(error))
    except Exception as error:  # noqa: BLE001 - one check must not cost the results of the others
        return failure(
            check.name, f"the check itself failed ({type(error).__name__}); report it as a fault of doctor"
        )


def failure(
    name: str, message: str, otherwise: str = "correct the setting; docs/configuration.md describes it"
) -> Result:
    """
    The result for an error of this service.

    Args:
        otherwise: Advice for a message without one.
    """
    found, advice = match.groups() if (match := _ADVICE.fullmatch(message)) else (message, otherwise)
    return Result(name, "failed", found, advice)
