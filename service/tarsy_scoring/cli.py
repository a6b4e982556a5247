"""
The command line. Exit status 0: success; 1: failure; 2: wrong use.

A foreseeable error prints one sentence on stderr, never a traceback.
"""

import re
import sys
from importlib import import_module
from importlib.resources import files
from typing import NoReturn, cast

import click

from tarsy_scoring import __version__
from tarsy_scoring.commands.shared import ASKED_WRONGLY, FAILED, plain_lines
from tarsy_scoring.config.studies_extra import has_studies
from tarsy_scoring.errors import ConfigurationError, ScoringError

# The commands under the help's headings. A command `name` is the function `name` of the module
# `commands.name`, imported when it is called.
LAB_SUMMARIES = {
    "demo": "Run the whole service here and score ten example sessions.",
    "stack": "Start PostgreSQL, a broker and a scripted judge to try it.",
}
LAB = tuple(LAB_SUMMARIES)
STUDIES = ("anchors", "compare", "consistency", "tool-needs", "judge-bench")
HEADINGS: dict[str, tuple[str, ...]] = {
    "Run the service": (*LAB, "migrate", "worker", "api", "bridge", "notify"),
    "Score sessions": ("score", "backfill", "rescore"),
    "Look at scores": ("export", "report", "calibrate", "criteria"),
    "Manage": (
        *("check-config", "doctor", "pause", "resume", "dead-letters", "tokens", "erase", "prune"),
        *("insights", "recount"),
    ),
}
if has_studies():
    HEADINGS["Study judges and agents"] = STUDIES
COMMANDS = [name for names in HEADINGS.values() for name in names]
MODULE_OF = {"resume": "pause", "backfill": "rescore"}  # these two share a module with another command
# Another distribution registers `LAB_COMMANDS` in this group. They are listed without it,
# too.
ENTRY_POINTS = "tarsy_scoring.commands"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> NoReturn:
    """Run a command and end the process with the exit status."""
    try:
        status = cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        status = 130
    except click.ClickException as error:
        error.message = plain_lines(error.message)
        error.show()
        status = error.exit_code
    except ConfigurationError as error:
        status = _complain(str(error), ASKED_WRONGLY)
    except BrokenPipeError:
        status = FAILED
    except BaseExceptionGroup as group:
        status = _complain_of_group(group)
    except _foreseeable() as error:
        status = _complain(str(error), FAILED)
    sys.exit(status if isinstance(status, int) else 0)


def _foreseeable() -> tuple[type[Exception], ...]:
    """
    The errors that a sentence explains. Only a command that failed imports the database's errors.
    """
    from tarsy_scoring.postgres.database import DatabaseAway

    return ScoringError, DatabaseAway


def _complain(message: str, status: int) -> int:
    click.echo(f"tarsy-scoring: {plain_lines(message)}", err=True)
    return status


def _complain_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """
    Report the first foreseeable error in a task group; re-raise an unforeseeable one with the traceback.
    """
    foreseen, rest = group.split(_foreseeable())
    if rest is not None:
        raise rest
    assert foreseen is not None
    error: BaseException = foreseen
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _complain(str(error), ASKED_WRONGLY if isinstance(error, ConfigurationError) else FAILED)


class CommandsOnDemand(click.Group):
    """A group that imports a command's module when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order in which the help lists them."""
        return COMMANDS

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under their headings, each with the whole summary."""
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(12), _summary(name)) for name in names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none with that name."""
        if cmd_name in LAB:
            return _lab_command(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        return cast(click.Command, getattr(import_module(_module_of(cmd_name)), cmd_name.replace("-", "_")))


def _module_of(command: str) -> str:
    name = command.replace("-", "_")
    room = "studies.commands" if command in STUDIES else "commands"
    return f"tarsy_scoring.{room}.{MODULE_OF.get(name, name)}"


def _summary(command: str) -> str:
    """First sentence of the command's docstring, read from the file: importing all takes a second."""
    if command in LAB:
        return LAB_SUMMARIES[command]
    package, _, module = _module_of(command).rpartition(".")
    text = files(package).joinpath(f"{module}.py").read_text("utf-8")
    found = re.search(rf'def {command.replace("-", "_")}\(.*?"""\s*(.+?\.)(?:\s|""")', text, re.DOTALL)
    return found[1] if found else ""


def _lab_command(name: str) -> click.Command:
    """The command that `tarsy-scoring-lab` registers; without that distribution, one that prints how to
    install it.
    """
    from importlib.metadata import entry_points  # slow to load, and only for these commands

    for found in entry_points(group=ENTRY_POINTS, name=name):
        return cast(click.Command, found.load())

    @click.command(name, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def missing(arguments: tuple[str, ...]) -> NoReturn:
        """Needs the distribution tarsy-scoring-lab: pip install 'tarsy-scoring[lab]'"""
        raise ConfigurationError(
            f"`{name}` is in the distribution tarsy-scoring-lab: run pip install 'tarsy-scoring[lab]'"
        )

    return missing


@click.group(cls=CommandsOnDemand, context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, prog_name="tarsy-scoring")
def cli() -> None:
    """
    How good was that automated investigation?

    Reads finished sessions from Kafka, lets a judge evaluate them, stores the scores in PostgreSQL and
    publishes them as events. Start with `tarsy-scoring demo`, which needs nothing installed beside it.

    Settings come from the environment (SCORING_*, OPENAI_*) and the YAML file in SCORING_CONFIG.
    `tarsy-scoring check-config` shows the settings in force.
    """
