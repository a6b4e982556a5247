"""
The command line. Exit status 0: success; 1: failure; 2: wrong use.

A foreseeable error prints one sentence on stderr, never a traceback.
"""

import gc
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, cast

import click

from tarsy_scoring import __version__
from tarsy_scoring.commands.shared import ASKED_WRONGLY, FAILED, plain_lines
from tarsy_scoring.config.studies_extra import has_studies
from tarsy_scoring.errors import ConfigurationError, ScoringError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# The commands under the headings of the help. A command `name` is the function `name` of the module
# `commands.name`, imported when it is called. The first sentence of its help stands here as well, so that a
# list of the commands imports none of them. It fits beside the name in 80 columns.
LAB_COMMANDS = {
    "demo": "Run the whole service here and score ten example sessions.",
    "stack": "Start PostgreSQL, a broker and a scripted judge to try it.",
}
STUDIES = {
    "anchors": "Sessions that every judge judges, to detect a changed judge.",
    "compare": "Compare two versions of the agents, or two criteria.",
    "consistency": "Have one session judged several times and show the spread.",
    "tool-needs": "Let a model read which tools scores miss, with quotes.",
    "judge-bench": "Measure how well judges tell right conclusions from wrong.",
}
HEADINGS = {
    "Run the service": LAB_COMMANDS
    | {
        "migrate": "Create the tables, or migrate them to the newest revision.",
        "worker": "Take in requests, judge and publish events, until SIGTERM.",
        "api": "Serve the HTTP API, WebSocket and pages, until SIGTERM.",
        "bridge": "Announce ended sessions of a TARSy database, until SIGTERM.",
    },
    "Score sessions": {
        "score": "Score one session file; needs neither Kafka nor a database.",
        "backfill": "Request scores of finished sessions that were never scored.",
    },
    "Ask again": {
        "rescore": "Request new scores of sessions, by name or by selection.",
    },
    "Look at scores": {
        "export": "Write scores to standard output, newest first.",
        "report": "Documents that summarise many scores.",
        "calibrate": "Measure how well the judge agrees with labels.",
        "criteria": "List, show, compare and validate criteria of the judge.",
        "tools": "Missing tools: which names are one tool, and their states.",
    },
    "Manage": {
        "check-config": "Show the settings in force and report errors in them.",
        "doctor": "Check database, brokers, topics, source and judge.",
        "notify": "Send a test message to a webhook or a channel.",
        "pause": "Stop judging: everything, or the chain or provider named.",
        "resume": "Lift pauses: all, or those of the chain or provider named.",
        "dead-letters": "List, show and replay messages that could not be processed.",
        "tokens": "Bearer tokens of the API.",
        "erase": "Remove sessions from every table, with scores and requests.",
        "prune": "Delete expired rows.",
    },
    "Rarely needed": {
        "completion": "Print the script that completes commands in bash, zsh or fish.",
        "insights": "Publish rolling figures of every chain, until SIGTERM.",
        "rollups": "Daily counts of scores that pages and reports read.",
    },
}
if has_studies():
    HEADINGS["Study judges and agents"] = STUDIES
COMMANDS = {
    name: summary
    for group in HEADINGS.values()
    for name, summary in group.items()
    if name not in LAB_COMMANDS
}
MODULE_OF = {"resume": "pause", "backfill": "rescore"}  # these two share a module with another command
# Another distribution registers the commands of `LAB_COMMANDS` in this group. They are listed without it,
# too.
ENTRY_POINTS = "tarsy_scoring.commands"
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> NoReturn:
    """Run a command and end the process with its status."""
    # With Python's own thresholds the collector walks what has been imported again and again: a tenth of a
    # start.
    gc.set_threshold(100_000, 20, 20)
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        status = 130
    except click.ClickException as error:
        error.message = plain_lines(error.message)
        error.show()
        status = error.exit_code
    except ConfigurationError as error:
        status = _complain(str(error), ASKED_WRONGLY)
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = FAILED
    except BaseExceptionGroup as group:
        status = _complain_of_group(group)
    except _foreseeable() as error:
        status = _complain(str(error), FAILED)
    finally:
        gc.freeze()  # or the end of the process walks all objects: a tenth of a short command
    sys.exit(status if isinstance(status, int) else 0)


def _foreseeable() -> tuple[type[Exception], ...]:
    """
    The errors of which a sentence says enough. Only a command that failed imports those of the database.
    """
    from tarsy_scoring.postgres.database import DatabaseAway

    return ScoringError, DatabaseAway


def _complain(message: str, status: int) -> int:
    click.echo(f"tarsy-scoring: {plain_lines(message)}", err=True)
    return status


def _complain_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """
    Report the first foreseeable error of a task group; re-raise an unforeseeable one with its traceback.
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
    """A group that imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the help."""
        return [name for commands in HEADINGS.values() for name in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under their headings, each with its whole summary."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, commands in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list["CompletionItem"]:
        """The commands that begin so, from the list and not from their modules, and then options."""
        from click.shell_completion import CompletionItem

        commands = {name: summary for listed in HEADINGS.values() for name, summary in listed.items()}
        items = [
            CompletionItem(name, help=text) for name, text in commands.items() if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        if cmd_name in LAB_COMMANDS:
            return _lab_command(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        room = "studies.commands" if cmd_name in STUDIES else "commands"
        module = import_module(f"tarsy_scoring.{room}.{MODULE_OF.get(name, name)}")
        return cast(click.Command, getattr(module, name))


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
