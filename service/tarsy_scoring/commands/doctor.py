"""`doctor`: checks the real environment, and says what does not fit and what would help."""

import asyncio
import os
import sys
from functools import partial

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    collected_warnings,
    in_words,
    json_option,
    print_json,
    print_text,
    run,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.checks import SETTING_ADVICE, CheckResult, run_checks
from tarsy_scoring.doctor.database import database_checks
from tarsy_scoring.doctor.systems import broker_checks, judge_checks, source_checks
from tarsy_scoring.errors import ConfigurationError, errors_of
from tarsy_scoring.gates.containment import contain_commands
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.wiring import ROLES, setting_errors, warn_of_settings


@click.command()
@click.option("--no-judge", is_flag=True, help="Call no model; else each provider gets one short question.")
@json_option
def doctor(no_judge: bool, as_json: bool) -> None:
    """
    Check database, brokers, topics, source and judge.

    Reads and asks, and changes nothing. Each check takes at most 10 s; one whose precondition failed is
    skipped. docs/requirements.md lists the checks. Exit status 1 if a check failed.
    """
    try:
        results = run(examine(settings_of_environment(), with_judge=not no_judge))
    except ConfigurationError as error:
        results = [CheckResult("settings", "failed", str(error), SETTING_ADVICE)]
    document = {"checks": results}
    print_json(document) if as_json else print_text("doctor.txt", document)
    sys.exit(FAILED if any(result.state == "failed" for result in results) else 0)


async def examine(settings: Settings, *, with_judge: bool) -> list[CheckResult]:
    """Run all checks, different systems at the same time."""
    systems = await asyncio.gather(
        examine_database(settings),
        run_checks(broker_checks(settings)),
        run_checks(source_checks(settings)),
        run_checks(judge_checks(settings, with_judge=with_judge)),
    )
    return [examine_settings(settings), *(result for results in systems for result in results)]


def examine_settings(settings: Settings) -> CheckResult:
    """Make the checks that a start makes; the advice includes what to do about warnings."""
    with collected_warnings() as warnings:
        errors = setting_errors(settings, ROLES, os.environ)
        errors += errors_of(partial(contain_commands, settings, os.environ))
        if not errors:
            warn_of_settings(settings, ROLES)
    advice = [in_words(warning) for warning in warnings]
    if errors:
        found = "\n".join(map(str, errors))
        return CheckResult("settings", "failed", found, "\n".join([SETTING_ADVICE, *advice]))
    found = "they are complete, and criteria and gates can be used"
    return CheckResult("settings", "ok", found, "\n".join(advice) or None)


async def examine_database(settings: Settings) -> list[CheckResult]:
    """Run our database's checks."""
    if settings.database_url is None:
        return [CheckResult("database", "skipped", "SCORING_DATABASE_URL is not set")]
    url = settings.database_url.get_secret_value()
    database = Database(url, settings.database_schema, pool_size=2, statement_cache=0)
    async with closing(database):
        await database.open()
        return await run_checks(database_checks(settings, database))
