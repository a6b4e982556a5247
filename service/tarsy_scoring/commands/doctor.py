"""`doctor`: checks the real environment, and says what does not fit and what would help."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from tarsy_scoring.commands.shared import (
    FAILED,
    check_database_urls,
    collected_warnings,
    in_words,
    json_option,
    print_json,
    print_text,
    run,
    settings_of_environment,
)
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.doctor.brokers import broker_checks
from tarsy_scoring.doctor.checks import Check, NotChecked, Result, failure, run_checks
from tarsy_scoring.doctor.database import database_checks
from tarsy_scoring.doctor.destinations import destination_checks
from tarsy_scoring.doctor.sessions import judge_checks, source_checks
from tarsy_scoring.errors import ConfigurationError, errors_of
from tarsy_scoring.gates.containment import contain_commands
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.wiring import ROLES, setting_errors, warn_of_settings


@click.command()
@click.option(
    "--no-judge", is_flag=True, help="Call no model. Otherwise each provider gets one question of a line."
)
@json_option
def doctor(no_judge: bool, as_json: bool) -> None:
    """
    Check database, brokers, topics, source and judge.

    Reads and asks, and changes nothing. Each check takes at most 10 s; one whose precondition failed is
    skipped. docs/requirements.md lists the checks. Exit status 1 if a check failed.
    """
    try:
        settings = settings_of_environment()
        with Console(stderr=True).status("checking ..."):  # prints nothing where stderr is no terminal
            results = run(examine(settings, with_judge=not no_judge))
    except ConfigurationError as error:
        results = [_failed_settings([error])]
    if as_json:
        print_json({"checks": results})
    else:
        print_text("doctor.txt", {"checks": results})
    sys.exit(FAILED if any(result.state == "failed" for result in results) else 0)


async def examine(settings: Settings, *, with_judge: bool) -> list[Result]:
    """Run all checks, those of different systems at the same time."""
    of_settings = examine_settings(settings)
    systems = (
        examine_database(settings),
        run_checks(broker_checks(settings)),
        run_checks(source_checks(settings)),
        run_checks(destination_checks(settings)),
        run_checks(judge_checks(settings, with_judge=with_judge)),
    )
    of_tokens = [examine_tokens(settings.api_tokens_file)] if settings.api_tokens_file else []
    return [
        of_settings,
        *of_tokens,
        *(result for results in await asyncio.gather(*systems) for result in results),
    ]


def examine_settings(settings: Settings) -> Result:
    """Make the checks of a start; the advice includes what to do about warnings."""
    with collected_warnings() as warnings:
        errors = errors_of(partial(check_database_urls, settings)) or [  # other checks read these URLs
            *setting_errors(settings, ROLES, os.environ),
            *errors_of(partial(contain_commands, settings, os.environ)),
        ]
        if not errors:
            warn_of_settings(settings, ROLES, os.environ)
    complete = Result("settings", "ok", "they are complete, and criteria and gates can be used")
    result = _failed_settings(errors) if errors else complete
    also = [in_words(warning) for warning in warnings]
    return replace(result, advice="\n".join(filter(None, [result.advice, *also])) or None)


def _failed_settings(errors: Sequence[ConfigurationError]) -> Result:
    """One failed check, whatever the number of errors; a line for each if there are several."""
    lines = [line for error in errors for line in str(error).splitlines()]
    if len(lines) == 1:
        return failure("settings", lines[0])
    advice = "correct each of them; docs/configuration.md describes the settings"
    return Result("settings", "failed", "\n".join(lines), advice)


def examine_tokens(path: Path) -> Result:
    """Look for tokens of the API that expire."""
    from tarsy_scoring.web.tokens import SOON_DAYS, TokensFile, utc_today

    try:
        tokens = TokensFile(path).current()
    except ConfigurationError as error:
        return failure("tokens", str(error))
    ending = [f"{t.name} ({t.expires})" for t in tokens if t.state(utc_today()) != "valid"]
    if not ending:
        return Result("tokens", "ok", f"{len(tokens)} tokens, none expires within {SOON_DAYS} days")
    found = f"{len(tokens)} tokens, expired or expiring within {SOON_DAYS} days: {', '.join(ending)}"
    return Result(
        "tokens", "ok", found, "give their callers new tokens, and remove the old ones from the file"
    )


async def examine_database(settings: Settings) -> list[Result]:
    """Run the checks of our database."""
    if settings.database_url is None:
        return await run_checks([Check("database", _not_set)])
    url = settings.database_url.get_secret_value()
    database = Database(url, settings.database_schema, pool_size=2, statement_cache=0)
    try:
        await database.open()
        return await run_checks(database_checks(settings, database))
    except ConfigurationError as error:
        return [failure("database", str(error))]
    finally:
        await database.close()


async def _not_set() -> str:
    raise NotChecked("SCORING_DATABASE_URL is not set")
