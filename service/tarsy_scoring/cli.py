"""
The commands. Exit status 0: it worked; 1: it failed; 2: it was asked wrongly.

Foreseeable faults end in one sentence on stderr, never in a traceback.
"""

import sys
from importlib.metadata import entry_points
from typing import NoReturn

import click

from tarsy_scoring import __version__
from tarsy_scoring.commands.anchors import anchors
from tarsy_scoring.commands.api import api
from tarsy_scoring.commands.bridge import bridge
from tarsy_scoring.commands.calibrate import calibrate
from tarsy_scoring.commands.compare import compare
from tarsy_scoring.commands.consistency import consistency
from tarsy_scoring.commands.criteria import criteria
from tarsy_scoring.commands.dead_letters import dead_letters
from tarsy_scoring.commands.erase import erase_command
from tarsy_scoring.commands.export import export
from tarsy_scoring.commands.insights import insights
from tarsy_scoring.commands.pause import pause, resume
from tarsy_scoring.commands.prune import prune
from tarsy_scoring.commands.report import report
from tarsy_scoring.commands.rescore import backfill, rescore
from tarsy_scoring.commands.score import score
from tarsy_scoring.commands.service import check_config, migrate, worker
from tarsy_scoring.commands.shared import ASKED_WRONGLY, FAILED, plain_lines
from tarsy_scoring.commands.tools import tools
from tarsy_scoring.errors import ConfigurationError, ScoringError
from tarsy_scoring.postgres.database import DatabaseAway

# Other distributions add commands under this group. `demo` and `stack` are listed also where they are not installed.
ENTRY_POINTS = "tarsy_scoring.commands"
LAB_COMMANDS = ("stack", "demo")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> NoReturn:
    """Run a command and end the process with its status."""
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
    """The first foreseen error of a group of loops; an unforeseen one comes with its traceback."""
    foreseen, rest = group.split((ScoringError, DatabaseAway))
    if rest is not None:
        raise rest
    assert foreseen is not None
    error: BaseException = foreseen
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return _complain(str(error), ASKED_WRONGLY if isinstance(error, ConfigurationError) else FAILED)


def _lab_command(name: str) -> click.Command:
    """The command as `tarsy-scoring-lab` registers it; without that distribution, a command that says how to get it."""
    for found in entry_points(group=ENTRY_POINTS, name=name):
        command: click.Command = found.load()
        return command

    @click.command(name, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def missing(arguments: tuple[str, ...]) -> NoReturn:
        """Needs the distribution tarsy-scoring-lab: pip install 'tarsy-scoring[lab]'"""
        raise ConfigurationError(
            f"`{name}` is in the distribution tarsy-scoring-lab: run pip install 'tarsy-scoring[lab]'"
        )

    return missing


@click.group(context_settings=CONTEXT, no_args_is_help=True)
@click.version_option(__version__, prog_name="tarsy-scoring")
def cli() -> None:
    """
    How good was that automated investigation?

    Takes finished sessions from Kafka, has a judge evaluate them, stores the scores in PostgreSQL and
    announces them as events. Start with `tarsy-scoring demo`: it brings all its parts along.

    Settings come from the environment (SCORING_*, OPENAI_*) and the YAML file in SCORING_CONFIG;
    `tarsy-scoring check-config` shows what is in force.
    """


for command in (
    *(worker, api, bridge, insights, migrate, check_config, pause, resume, dead_letters),
    *(score, rescore, backfill, export),
    *(erase_command, prune),
    *(criteria, compare, consistency, calibrate, anchors, report, tools),
):
    cli.add_command(command)
for name in LAB_COMMANDS:
    cli.add_command(_lab_command(name))
