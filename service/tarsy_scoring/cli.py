"""
The command line. Exit status 0: success; 1: failure; 2: wrong use.

A foreseeable error prints one sentence on stderr, never a traceback.
"""

import gc
import sys
from importlib import import_module
from typing import NoReturn, cast

import click

from tarsy_scoring import __version__
from tarsy_scoring.commands.shared import ASKED_WRONGLY, FAILED, plain_lines
from tarsy_scoring.errors import ConfigurationError, ScoringError
from tarsy_scoring.postgres.database import DatabaseAway

# A command `name` is the function `name` of the module `commands.name`, imported when it is called. The first sentence
# of its help stands here as well, so that a list of the commands imports none of them.
COMMANDS = {
    "worker": "Take in requests, judge sessions and publish scoring events, until SIGTERM.",
    "api": "Serve scores over HTTP and scoring events over WebSocket, until SIGTERM.",
    "bridge": "Announce ended sessions of a TARSy database, until SIGTERM.",
    "insights": "Publish rolling figures of every chain, until SIGTERM.",
    "migrate": "Migrate the tables of SCORING_DATABASE_URL to the newest revision.",
    "check-config": "Show the settings in force, without secrets, and report errors in them.",
    "doctor": "Check the environment that the settings name: database, brokers, topics, source and judge.",
    "pause": "Stop judging: everything, or the chain or provider named.",
    "resume": "Lift pauses: all, or those of the chain or provider named.",
    "dead-letters": "Messages that could not be processed: list, show and replay them.",
    "score": "Score one session file; needs neither Kafka nor a database.",
    "rescore": "Request new scores of sessions, by name or by selection.",
    "backfill": "Request scores of finished sessions that were never scored, oldest first.",
    "export": "Write scores to standard output, newest first.",
    "erase": "Remove sessions from every table, with their scores, replies, events and requests.",
    "tokens": "Bearer tokens of the API.",
    "prune": "Delete expired rows, according to SCORING_RETENTION_DAYS and `retention` in the YAML.",
    "rollups": "Daily counts of scores that trends, distribution, missing tools, failure tags and drift are read from.",
    "criteria": "List, show, compare and validate criteria: the instructions of the judge.",
    "compare": "Compare two versions of the agents, or two criteria.",
    "consistency": "Have one session judged several times and show the spread of the judgements.",
    "judge-bench": "Measure how well judges tell right conclusions from wrong ones, on sessions with a known outcome.",
    "calibrate": "Measure how well the judge agrees with labels, for each criteria and judge fingerprint.",
    "anchors": "Sessions that every judge judges, to separate a change of judge from a change of agents.",
    "report": "Documents that summarise many scores.",
    "tools": "Missing tools: which names are one tool, and the state of each.",
}
MODULE_OF = {"resume": "pause", "backfill": "rescore"}  # these two share a module with another command
# Other distributions register commands in this group. `demo` and `stack` are listed even if they are not
# installed.
ENTRY_POINTS = "tarsy_scoring.commands"
LAB_COMMANDS = ("stack", "demo")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> NoReturn:
    """Run a command and end the process with its status."""
    # With Python's own thresholds the collector walks what has been imported again and again: a tenth of a start.
    gc.set_threshold(50_000, 20, 20)
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
    except (ScoringError, DatabaseAway) as error:
        status = _complain(str(error), FAILED)
    except BaseExceptionGroup as group:
        status = _complain_of_group(group)
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        status = FAILED
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str, status: int) -> int:
    click.echo(f"tarsy-scoring: {plain_lines(message)}", err=True)
    return status


def _complain_of_group(group: BaseExceptionGroup[BaseException]) -> int:
    """Report the first foreseeable error of a task group; re-raise an unforeseeable one with its traceback."""
    foreseen, rest = group.split((ScoringError, DatabaseAway))
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
        """All names, in alphabetical order."""
        return sorted([*COMMANDS, *LAB_COMMANDS])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of the commands in the help, as click writes it."""
        names = self.list_commands(ctx)
        limit = formatter.width - 6 - max(map(len, names))
        lab = {name: _lab_command(name).get_short_help_str(limit) for name in LAB_COMMANDS}
        with formatter.section("Commands"):
            formatter.write_dl([(name, lab.get(name) or _short(COMMANDS[name], limit)) for name in names])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now; None if there is none of that name."""
        if cmd_name in LAB_COMMANDS:
            return _lab_command(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        module = import_module(f"tarsy_scoring.commands.{MODULE_OF.get(name, name)}")
        return cast(click.Command, getattr(module, name))


def _short(summary: str, limit: int) -> str:
    return click.Command(None, help=summary).get_short_help_str(limit)


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
