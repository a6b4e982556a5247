"""Helpers that commands share: settings, the event loop, output, argument parsing."""

import gc
import getpass
import math
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from itertools import count
from json import dumps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tarsy_scoring.postgres.moments import FIRST, LAST, moment

# The command list and every help import this module, so functions import what only they use.
if TYPE_CHECKING:
    from tarsy_scoring.audit.audit import Change
    from tarsy_scoring.config.settings import Settings
    from tarsy_scoring.judge.criteria import CriteriaRegistry
    from tarsy_scoring.postgres.database import Database
    from tarsy_scoring.wiring import Parts

T = TypeVar("T")
FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

FAILED, ASKED_WRONGLY = 1, 2  # exit statuses; click ends with 2 for wrong usage as well

json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
yes_option = click.option("--yes", is_flag=True, help="Do it; without this option, it is only counted.")
# `may_spend` reads it.
spend_option = click.option(
    "--yes",
    is_flag=True,
    expose_value=False,
    callback=lambda context, _, yes: context.meta.update(yes=yes),
    help="Spend what the estimate says, without asking.",
)


class FiniteRange(click.FloatRange):
    """A finite number within bounds. `click.FloatRange` alone accepts `nan` and often `inf`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises: click.BadParameter."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def settings_of_environment() -> "Settings":
    """
    Load the settings and configure logging with them.

    Raises:
        ConfigurationError: See `load_settings`.
    """
    from tarsy_scoring.config.load import load_settings
    from tarsy_scoring.telemetry.logging import set_up_logging

    settings = load_settings()
    set_up_logging(settings.log_level, settings.log_format)
    return settings


def calm_garbage_collector() -> None:
    """
    Let Python's garbage collector run rarely, and exempt all objects built so far.

    Call it once, when a long-running process has started: 17-19 % less CPU per score at the same
    peak memory.
    """
    # A score or an answer consists of thousands of small objects, which reference counting frees. With
    # Python's own thresholds the collector walks all of them, and all imported modules, again and again.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to the end in a new uvloop event loop."""
    import uvloop

    from tarsy_scoring.audit import audit

    with audit.coming_from(audit.ChangeOrigin("cli", socket.gethostname())):
        return uvloop.run(work)


def run_on_parts(work: Callable[["Parts"], Awaitable[T]], settings: "Settings | None" = None) -> T:
    """
    Run `work` with the parts of a migrated database in a new event loop.

    Args:
        settings: Default: those of the environment.

    Raises:
        ConfigurationError, DatabaseAway, StartRefused: See `open_migrated_parts`.
    """
    from tarsy_scoring.wiring import open_migrated_parts

    settings = settings or settings_of_environment()

    async def main() -> T:
        async with open_migrated_parts(settings) as parts:
            return await work(parts)

    return run(main())


async def audited(database: "Database", change: "Change", **details: Any) -> None:
    """Record this command's change before it is made. Raises: DatabaseAway."""
    from tarsy_scoring.audit import audit

    await audit.note(database, change, by=asker(), **details)


@contextmanager
def collected_warnings() -> Iterator[list[dict[str, Any]]]:
    """
    Collect log lines in place of writing them, for a command that prints warnings in another form.

    The list has the warnings when the block has ended: each with `event` and fields.
    """
    from structlog.testing import capture_logs  # made for tests

    warnings: list[dict[str, Any]] = []
    with capture_logs() as lines:
        yield warnings
    for line in lines:
        if line.pop("log_level") == "warning":
            warnings.append(dict(line))


def in_words(warning: Mapping[str, Any]) -> str:
    """A warning on one line: event (docs/log-events.md explains it) and fields."""
    fields = ", ".join(
        f"{name} {', '.join(value) if isinstance(value, list) else value}"
        for name, value in warning.items()
        if name != "event"
    )
    return f"{warning['event']}: {fields}"


def plain_lines(text: str) -> str:
    """Untrusted text without control, colour or direction characters; keeps lines and their indentation."""
    from tarsy_scoring.timeline.text import without_invisible

    return "".join(c if c.isprintable() or c == "\n" else " " for c in without_invisible(text))


def plain(text: str) -> str:
    """Untrusted text on one line, without control, colour or direction characters."""
    from tarsy_scoring.timeline.text import one_line

    return one_line(text)


def print_json(value: Any, *, on_one_line: bool = False) -> None:
    """
    Print one JSON document: indented on a terminal, else on one line; foreign text cannot control the
    terminal.
    """
    from pydantic_core import to_json

    text = to_json(value, indent=2 if sys.stdout.isatty() and not on_one_line else None).decode()
    # JSON itself leaves C1 control characters and direction characters as they are.
    click.echo("".join(c if c.isprintable() or c == "\n" else dumps(c)[1:-1] for c in text))


def print_either(document: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the document with `--json`, else the lines for people."""
    if as_json:
        print_json(document)
        return
    for line in lines:
        click.echo(line)


def print_text(name: str, document: Mapping[str, Any], *, room: str = "commands", err: bool = False) -> None:
    """
    Print a document for people, with a template from `texts`; foreign text in it cannot control the terminal.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    texts = Environment(
        loader=PackageLoader(f"tarsy_scoring.{room}", "texts"),
        autoescape=False,  # noqa: S701  # no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    texts.filters |= {"plain": plain, "counted": counted, "usd": usd}
    click.echo(plain_lines(texts.get_template(name).render(document)).rstrip("\n"), err=err)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """
    Show a progress bar on stderr if that is a terminal; yields the function that sets the number done.

    Args:
        total: None if unknown.
    """
    endless = count() if total is None else None
    is_hidden = not sys.stderr.isatty()
    with click.progressbar(
        endless, length=total, label=what, show_pos=True, file=sys.stderr, hidden=is_hidden
    ) as bar:
        yield lambda done: bar.update(done - bar.pos)


def may_spend(*, previews: bool = False, is_named: bool = False) -> bool:
    """
    Whether to make the calls whose estimate was shown: with `--yes`, or after a question at a terminal.

    Args:
        previews: Without a terminal and without `--yes` the command has done its work: it is False then.
        is_named: The user named each session; without a terminal that is the order.

    Raises:
        click.Abort: The answer is no.
        click.UsageError: There is no terminal to ask at, no `--yes`, and the command does not preview.
    """
    if click.get_current_context().meta["yes"]:
        return True
    if sys.stdin.isatty():
        return click.confirm("Spend this?", abort=True, err=True)
    if not (previews or is_named):
        raise click.UsageError("nothing was sent: there is no terminal to ask at; add --yes to send it")
    return is_named


def usd(amount: float) -> str:
    """Format an amount in USD; small amounts with more digits."""
    return f"{amount:,.2f} USD" if amount >= 1 else f"{amount:.4f} USD"


def require_extra(module: str, extra: str) -> None:
    """Require a module of an extra. Raises: ConfigurationError: names the command that installs it."""
    from tarsy_scoring.errors import ConfigurationError

    if find_spec(module) is None:
        raise ConfigurationError(f"{module} is not installed; run: pip install 'tarsy-scoring[{extra}]'")


def asker() -> str:
    """The command-line user's name, for `requested_by`."""
    try:
        return os.environ.get("USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "cli"


def session_id(name: str) -> str:
    """Require a well-formed session id; for `type` of an argument. Raises: click.BadParameter."""
    from tarsy_scoring.events import SESSION_ID_PATTERN

    if not SESSION_ID_PATTERN.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not a session id", param_hint="SESSION")
    return name


def sessions_argument(*, required: bool) -> Callable[[FC], FC]:
    """The argument `sessions`: session ids without repeats."""
    return click.argument(
        "sessions",
        nargs=-1,
        required=required,
        metavar="SESSION..." if required else "[SESSION]...",
        type=session_id,
        callback=lambda context, parameter, names: list(dict.fromkeys(names)),
    )


def require_criteria(registry: "CriteriaRegistry", name: str, also: Iterable[str] = ()) -> None:
    """
    Refuse an unknown criteria name.

    Args:
        also: Further names to accept.

    Raises:
        click.BadParameter: Listing the known names.
    """
    require_known("criteria", name, {c.name for c in registry} | set(also), "--criteria")


def require_known(what: str, name: str, known: Iterable[str], option: str) -> None:
    """Refuse an unknown name. Raises: click.BadParameter: Listing the known names."""
    from tarsy_scoring.config.explain import nearest

    if name not in (names := sorted(known)):
        verb, hint = "are" if what == "criteria" else "is", f"(known: {', '.join(names) or 'none'})"
        raise click.BadParameter(
            f"no {what} {verb} called {name!r} {hint}{nearest(name, names)}", param_hint=option
        )


def time_option(text: str) -> datetime:
    """Parse an ISO 8601 time, UTC without a zone; for `type` of an option. Raises: click.BadParameter."""
    found = moment(text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a time from {FIRST.year} to {LAST.year - 1}; write 2026-01-31 or 2026-01-31T12:00:00Z"
        )
    return found


def not_blank(text: str) -> str:
    """
    Require a text that is not blank; for `type` of an option.

    Raises:
        click.BadParameter: The text is blank.
    """
    # A script passes an empty text where a variable is not set.
    if not text.strip():
        raise click.BadParameter("it is empty; to apply no such limit, leave the option out")
    return text


def counted(number: int, thing: str) -> str:
    """A number and a noun, such as `1 session` or `2 sessions`."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")
