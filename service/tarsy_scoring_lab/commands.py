"""The commands `stack` and `demo`, which run all parts on this machine."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from tarsy_scoring.commands.shared import run
from tarsy_scoring.telemetry.logging import set_up_logging
from tarsy_scoring.telemetry.stopping import run_until_signalled

broker_option = click.option(
    "--broker",
    type=click.Choice(["auto", "apache-kafka", "tansu"]),
    default="auto",
    show_default=True,
    help="`auto`: Apache Kafka where Java and Maven are, else Tansu (in memory).",
)


@click.command()
@click.option("--json", "as_json", is_flag=True, help='One line: {"env": {...}, "broker": "..."}.')
@broker_option
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep the data here.")
def stack(as_json: bool, broker: Any, directory: Path | None) -> None:
    """
    Start PostgreSQL, a broker and a scripted judge to try it.

    Needs no containers. Prints the environment variables of the service when all parts answer, and runs until
    SIGTERM or Ctrl-C. The judge is a stand-in and says so in every answer. Never use it in production.
    """
    from tarsy_scoring_lab.stack import Stack
    from tarsy_scoring_lab.tarsy import create_tables

    set_up_logging("error", None)

    async def main(stopping: asyncio.Event) -> None:
        async with Stack(broker=broker, directory=directory) as parts:
            await create_tables(parts.env["SCORING_TIMELINE_DATABASE_URL"])
            if as_json:
                click.echo(json.dumps({"env": parts.env, "broker": parts.broker}))
            else:
                for name, value in parts.env.items():
                    click.echo(f"export {name}={value}")
                click.echo(f"# broker: {parts.broker}; Ctrl-C ends it and leaves nothing behind")
            sys.stdout.flush()
            await stopping.wait()

    run(run_until_signalled(main))


@click.command()
@click.option("--keep-running", is_flag=True, help="Keep all parts running afterwards, until Ctrl-C.")
@broker_option
def demo(keep_running: bool, broker: Any) -> None:
    """
    Run the whole service here and score ten example sessions.

    Starts the embedded servers, a worker and the API, loads the examples into a TARSy-shaped database beside
    three months of example scores, and shows the scores as their events arrive from Kafka. The judge replays
    recorded judgements; set
    OPENAI_API_KEY or OPENAI_BASE_URL (and SCORING_JUDGE_MODEL) to have a real model judge.
    """
    from tarsy_scoring_lab.demo import run_demo

    set_up_logging("error", None)
    status = 0

    async def main(stopping: asyncio.Event) -> None:
        nonlocal status
        status = await run_demo(keep_running=keep_running, broker=broker, stopping=stopping)

    run(run_until_signalled(main))
    sys.exit(status)
