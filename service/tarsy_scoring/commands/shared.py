"""What every command does the same way: settings, the event loop, output, times."""

import asyncio
import sys
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
from pydantic_core import to_json

from tarsy_scoring.settings import Settings, load_settings
from tarsy_scoring.telemetry import set_up_logging

T = TypeVar("T")

FAILED, ASKED_WRONGLY = 1, 2


def settings_of_environment() -> Settings:
    """
    The settings, with logging set up as they say.

    Raises:
        ConfigurationError: See `load_settings`.
    """
    settings = load_settings()
    set_up_logging(settings.log_level, settings.log_format)
    return settings


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run async work in an event loop of its own, the fast one where there is one."""
    if sys.platform == "win32":
        return asyncio.run(work)
    import uvloop

    return uvloop.run(work)


def print_json(value: Any) -> None:
    """One JSON document on stdout: indented for people, one line for programs."""
    click.echo(to_json(value, indent=2 if sys.stdout.isatty() else None).decode())


def moment(text: str) -> datetime:
    """A time as people write it; without a zone it is UTC. Raises: click.BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
