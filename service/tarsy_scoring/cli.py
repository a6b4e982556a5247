"""
The commands. Exit status 0: it worked; 1: it failed; 2: it was asked wrongly.

Foreseeable faults end in one sentence on stderr, never in a traceback.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic_core import to_json
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tarsy_scoring import __version__
from tarsy_scoring.admission import Priority, Request
from tarsy_scoring.app import ROLES, Role, check_settings, open_parts, require_migrated, run_worker
from tarsy_scoring.database import DatabaseAway
from tarsy_scoring.errors import ConfigurationError, InvalidMessage, ScoringError
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.llm import create_clients
from tarsy_scoring.settings import SECRETS, Settings, load_settings, variable_of
from tarsy_scoring.telemetry import set_up_logging
from tarsy_scoring.timeline.model import SESSION_ID_PATTERN

FAILED, ASKED_WRONGLY = 1, 2
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def main() -> NoReturn:
    """Run a command and end the process with its status."""
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        status = 130
    except click.ClickException as error:
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
    click.echo(f"tarsy-scoring: {message}", err=True)
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


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    if sys.platform != "win32":
        import uvloop

        return uvloop.run(work)
    return asyncio.run(work)


def _settings() -> Settings:
    settings = load_settings()
    set_up_logging(settings.log_level, settings.log_format)
    return settings


def _print_json(value: Any) -> None:
    click.echo(to_json(value, indent=2 if sys.stdout.isatty() else None).decode())


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


@cli.command()
@click.option(
    "--only", metavar="ROLE,...", help="Run some roles alone: intake, judging (or judge), relay. Default: all three."
)
def worker(only: str | None) -> None:
    """
    Take requests in, judge, and publish scoring events, until SIGTERM.

    Workers are identical: start as many as you like. SIGTERM lets running attempts finish within
    SCORING_DRAIN_TIMEOUT_S and gives the rest back. Serves /metrics, /healthz and /readyz on
    SCORING_METRICS_PORT.
    """
    from tarsy_scoring.lifecycle import run_until_signalled

    roles = _roles(only)
    settings = _settings()
    check_settings(settings, roles, os.environ)
    _run(run_until_signalled(lambda stopping: run_worker(settings, roles, stopping)))


def _roles(only: str | None) -> tuple[Role, ...]:
    if not only:
        return ROLES
    wanted = ["judging" if part.strip() == "judge" else part.strip() for part in only.split(",")]
    for role in wanted:
        if role not in ROLES:
            raise click.BadParameter(f"no role is called {role!r} (known: intake, judge, relay)", param_hint="--only")
    return tuple(r for r in ROLES if r in wanted)


@cli.command()
@click.option("--phase", type=click.Choice(["pre", "post"]), help="`pre`: stop before the first clean-up revision.")
@click.option("--down", metavar="REV", help="Go down to this revision; `base` removes every table and all scores.")
def migrate(phase: Any, down: str | None) -> None:
    """
    Bring the tables of SCORING_DATABASE_URL to the newest revision.

    Run `--phase pre` before a rollout and `--phase post` after it. Safe to run twice and at the same time.
    """
    from tarsy_scoring import schema

    if phase and down:
        raise click.UsageError("--phase and --down exclude each other")
    settings = _settings()
    done = schema.migrate(settings.require_database(), settings.database_schema, phase=phase, down=down)
    what = "undone" if down else "applied"
    click.echo(f"{what}: {', '.join(done)}" if done else "nothing to do: the tables are up to date")


@cli.command("check-config")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def check_config(as_json: bool) -> None:
    """
    Show the settings in force, without secrets, and say what is wrong with them.

    Checks everything that can be checked without connecting to anything. Exit status 2 if something is wrong.
    """
    settings = _settings()
    check_settings(settings, ROLES, os.environ)
    shown = settings.model_dump(mode="json", exclude={"config", "unknown_variables"})
    for name in SECRETS:
        shown[name] = "(set)" if shown[name] else None
    variables = {variable_of(k): v for k, v in shown.items()}
    registry = load_criteria(settings.config.criteria_dirs)
    hashes = {c.name: c.criteria_hash for c in registry}
    document = {
        "environment": variables,
        "config": settings.config.model_dump(mode="json"),
        "criteria": hashes,
        "unknown_variables": list(settings.unknown_variables),
    }
    if as_json:
        _print_json(document)
        return
    table = Table("variable", "value", title="environment", title_justify="left")
    for name, value in variables.items():
        table.add_row(name, "" if value is None else escape(str(value)))
    console = Console()
    console.print(table)
    console.print("config:", json.dumps(document["config"], indent=2), markup=False, highlight=False)
    console.print("criteria:", ", ".join(f"{n} {h[:12]}" for n, h in hashes.items()), markup=False)
    console.print("the configuration is fine")


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the score document.")
@click.option("--no-judge", is_flag=True, help="Do not ask a judge: no total.")
@click.option("--dry-run", is_flag=True, help="Show the masked prompt, its tokens and cost; ask nobody.")
@click.option("--chain", metavar="NAME", help="Use the settings of this chain instead of the session's own.")
def score(file: Path, as_json: bool, no_judge: bool, dry_run: bool, chain: str | None) -> None:
    """
    Score one session file; needs neither Kafka nor a database.

    FILE is a session in JSON, as in a folder of SCORING_TIMELINE_SOURCE=files. The judge is the
    chain's first provider, by default the one in OPENAI_BASE_URL and OPENAI_API_KEY. Exit status 0: scored, and the
    outcome is not `fail`; 1: outcome `fail`, or no score; the document's error_kind says why.
    """
    from tarsy_scoring import offline
    from tarsy_scoring.timeline.files import read_session_file

    settings = _settings()
    registry = load_criteria(settings.config.criteria_dirs)
    if chain is not None and chain not in settings.config.chains:
        known = ", ".join(sorted(settings.config.chains)) or "none is configured"
        raise click.BadParameter(f"no chain is called {chain!r} (known: {known})", param_hint="--chain")
    timeline = read_session_file(file)
    if dry_run:
        _show_dry_run(offline.dry_run(settings, registry, timeline, chain), as_json)
        return
    chain_settings = settings.chain(chain or timeline.chain_id)
    with_judge = not no_judge and chain_settings.judge.enabled

    async def work() -> dict[str, Any]:
        clients = create_clients(settings) if with_judge else {}
        try:
            return await offline.score_offline(settings, registry, clients, timeline, chain, with_judge=with_judge)
        finally:
            for client in clients.values():
                await client.close()

    console = Console(stderr=True)
    with console.status("judging ...") if with_judge and console.is_terminal else _Quiet():
        document = _run(work())
    _print_json(document) if as_json else _show_score(document)
    has_no_score = document["status"] != "completed" or (with_judge and document["total_score"] is None)
    sys.exit(FAILED if has_no_score or document["outcome"] == "fail" else 0)


class _Quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_args: object) -> None: ...


def _show_dry_run(run: Any, as_json: bool) -> None:
    if as_json:
        messages = [{"role": m.role, "content": m.content} for m in run.messages]
        _print_json(
            {
                "messages": messages,
                "tokens": run.tokens,
                "cost_usd": run.cost_usd,
                "coverage": run.coverage,
                "flags": run.flags,
            }
        )
        return
    for message in run.messages:
        click.echo(f"--- {message.role} ---\n{message.content}")
    cost = "unknown (no prices are configured)" if run.cost_usd is None else f"at most {run.cost_usd:.4f} USD"
    click.echo(f"--- about {run.tokens} tokens in the first turn; both turns cost {cost} ---", err=True)


def _show_score(document: dict[str, Any]) -> None:
    console = Console()
    if document["status"] != "completed":
        console.print(f"[bold red]no score[/]: {document['error_kind']}")
        console.print(document["error_message"], markup=False)
        return
    total = document["total_score"]
    console.print(f"[bold]{document['session_id']}[/]  {'no judge' if total is None else f'{total}/100'}")
    for name, points in (document["score_breakdown"] or {}).items():
        console.print(f"  {name}: {points:g}", markup=False)
    for title, text in (("", document["score_analysis"]), ("missing tools", document["missing_tools_analysis"])):
        if text:
            console.print()
            console.print(f"{title}\n{text}".strip(), markup=False)
    if document["flags"]:
        console.print("\nflags: " + ", ".join(document["flags"]), markup=False)


@cli.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--failed", is_flag=True, help="All sessions whose newest score failed or timed out.")
@click.option("--error-kind", metavar="KIND", help="With --failed: only those that failed like this.")
@click.option("--since", metavar="TIME", help="Only scores made since then (RFC 3339, or a date).")
@click.option("--chain", metavar="NAME", help="Only sessions of this chain.")
@click.option("--criteria", metavar="NAME", help="Score under these criteria instead of the chain's.")
@click.option("--reason", metavar="TEXT", help="Kept with the request.")
@click.option("--yes", is_flag=True, help="Really do it; without it, a selection is only counted.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def rescore(
    sessions: tuple[str, ...],
    failed: bool,
    error_kind: str | None,
    since: str | None,
    chain: str | None,
    criteria: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """
    Ask for sessions to be scored again: by name, or a selection.

    Named sessions are scored before everything else, a selection after everything else. Without --yes a
    selection is only counted. Needs the database; the workers do the rest.
    """
    settings = _settings()
    is_selection = failed or since is not None
    if bool(sessions) == is_selection:
        raise click.UsageError("name sessions, or select them with --failed or --since")
    if error_kind and not failed:
        raise click.UsageError("--error-kind goes with --failed")
    for name in sessions:
        if not SESSION_ID_PATTERN.fullmatch(name):
            raise click.BadParameter(f"{name!r} is not a session id", param_hint="SESSION")
    registry = load_criteria(settings.config.criteria_dirs)
    if criteria is not None and criteria not in registry:
        known = ", ".join(sorted(c.name for c in registry))
        raise click.BadParameter(f"no criteria are called {criteria!r} (known: {known})", param_hint="--criteria")
    moment = _moment(since) if since else None

    async def work() -> tuple[list[str], dict[str, int]]:
        async with open_parts(settings) as parts:
            await require_migrated(parts.database, wait=False)
            chosen = list(dict.fromkeys(sessions))
            if failed:
                chosen = await parts.reader.failed_sessions(error_kind, chain, moment)
            elif is_selection:
                chosen = await parts.reader.scored_sessions(chain, moment)
            if is_selection and not yes:
                return chosen, {}
            priority = Priority.BULK if is_selection else Priority.PEOPLE
            requests = [
                Request(
                    request_id=uuid.uuid4(),
                    session_id=s,
                    source="cli",
                    requested_by=os.environ.get("USER") or "cli",
                    force=True,
                    criteria=criteria,
                    reason=reason,
                    priority=priority,
                )
                for s in chosen
            ]
            counts: dict[str, int] = {}
            for start in range(0, len(requests), 500):
                for disposition in (await parts.inbox.accept(requests[start : start + 500])).values():
                    counts[disposition] = counts.get(disposition, 0) + 1
            return chosen, counts

    chosen, counts = _run(work())
    if as_json:
        _print_json({"sessions": len(chosen), "dispositions": counts, "done": bool(counts) or not chosen})
    elif is_selection and not yes:
        click.echo(f"{len(chosen)} sessions would be scored again; add --yes to do it")
    else:
        told = ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) or "nothing to do"
        click.echo(f"{len(chosen)} sessions: {told}")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@cli.group("dead-letters")
def dead_letters() -> None:
    """Messages that could not be understood: list them, look at one, send one again."""


@dead_letters.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def list_dead_letters(as_json: bool) -> None:
    """List the dead letters that Kafka still keeps. PLACE is what `show` and `replay` take."""
    letters = _run(_dead_letters(_settings()))
    if as_json:
        for letter in letters:
            click.echo(to_json(_letter_json(letter)).decode())
        return
    table = Table("place", "failed at", "error", "message", "from")
    for letter in letters:
        origin = letter.origin
        source = f"{origin.topic} {origin.partition}:{origin.offset}" if origin else "unknown"
        table.add_row(letter.place, letter.failed_at, letter.error, escape(letter.error_message), source)
    Console().print(table if letters else "no dead letters")


@dead_letters.command("show")
@click.argument("place")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
def show_dead_letter(place: str, as_json: bool) -> None:
    """Show one dead letter and the beginning of its message."""
    from tarsy_scoring.dead_letters import preview

    settings = _settings()
    (letter,) = _find(_run(_dead_letters(settings)), [place])
    body = _run(_body_of(settings, letter)) if letter.body_id else None
    value = body.value if body else letter.value
    document = _letter_json(letter) | {"value": preview(value)}
    if as_json:
        _print_json(document)
        return
    for name, shown in document.items():
        click.echo(f"{name}: {shown}")


@dead_letters.command("replay")
@click.argument("places", nargs=-1, metavar="[PLACE]...")
@click.option("--all", "everything", is_flag=True, help="Every dead letter that Kafka still keeps.")
def replay_dead_letters(places: tuple[str, ...], everything: bool) -> None:
    """
    Send dead letters to their original topic again, as the requests they were.

    A message that was understood meanwhile changes nothing; one that still cannot be is dead-lettered again.
    """
    from tarsy_scoring import dead_letters as letters_
    from tarsy_scoring.kafka import Publisher

    if bool(places) == everything:
        raise click.UsageError("name places, or say --all")
    settings = _settings()

    async def work() -> tuple[int, list[str]]:
        found = await _dead_letters(settings)
        chosen = found if everything else _find(found, places)
        publisher, refused = Publisher(settings), []
        try:
            for letter in chosen:
                body = await _body_of(settings, letter) if letter.body_id else None
                try:
                    await letters_.replay(publisher, letter, body)
                except InvalidMessage as error:
                    refused.append(str(error))
        finally:
            await publisher.stop()
        return len(chosen) - len(refused), refused

    sent, refused = _run(work())
    for why in refused:
        click.echo(f"not replayed: {why}", err=True)
    click.echo(f"replayed: {sent}")
    sys.exit(FAILED if refused else 0)


async def _dead_letters(settings: Settings) -> list[Any]:
    from tarsy_scoring.dead_letters import read
    from tarsy_scoring.kafka import read_topic

    return [read(r) async for r in read_topic(settings, settings.topic_dead_letters)]


async def _body_of(settings: Settings, letter: Any) -> Any:
    async with open_parts(settings) as parts:
        return await parts.reader.body(letter.body_id)


def _find(letters: Sequence[Any], places: Sequence[str]) -> list[Any]:
    by_place = {letter.place: letter for letter in letters}
    for place in places:
        if place not in by_place:
            raise click.BadParameter(
                f"there is no dead letter at {place!r}; `tarsy-scoring dead-letters list` shows the places",
                param_hint="PLACE",
            )
    return [by_place[place] for place in places]


def _letter_json(letter: Any) -> dict[str, Any]:
    origin = letter.origin
    return {
        "place": letter.place,
        "error": letter.error,
        "error_message": letter.error_message,
        "failed_at": letter.failed_at,
        "original_topic": origin.topic if origin else None,
        "original_partition": origin.partition if origin else None,
        "original_offset": origin.offset if origin else None,
        "original_timestamp_ms": origin.timestamp_ms if origin else None,
        "key": letter.key.decode("utf-8", "replace") if letter.key else None,
        "bytes": len(letter.value or b""),
        "body_id": str(letter.body_id) if letter.body_id else None,
    }


@cli.command()
@click.option("--json", "as_json", is_flag=True, help='One line: {"env": {...}, "broker": "..."}.')
@click.option(
    "--broker",
    type=click.Choice(["auto", "apache-kafka", "tansu"]),
    default="auto",
    show_default=True,
    help="`auto`: Apache Kafka where Java and Maven are, else Tansu (in memory).",
)
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Keep the data here; default: nowhere.")
def stack(as_json: bool, broker: Any, directory: Path | None) -> None:
    """
    PostgreSQL, a broker and a scripted judge for local work, out of packages.

    Prints the environment to use when all of it answers, and runs until SIGTERM or Ctrl-C. The judge is a
    stand-in and says so in every answer. Never for production.
    """
    from tarsy_scoring.embedded.stack import Stack
    from tarsy_scoring.lifecycle import run_until_signalled

    set_up_logging("warning", None)

    async def main(stopping: asyncio.Event) -> None:
        async with Stack(broker=broker, directory=directory) as parts:
            if as_json:
                click.echo(json.dumps({"env": parts.env, "broker": parts.broker}))
            else:
                for name, value in parts.env.items():
                    click.echo(f"export {name}={value}")
                click.echo(f"# broker: {parts.broker}; Ctrl-C ends it and leaves nothing behind")
            sys.stdout.flush()
            await stopping.wait()

    _run(run_until_signalled(main))


@cli.command()
@click.option("--keep-running", is_flag=True, help="Leave everything up afterwards, until Ctrl-C.")
@click.option(
    "--broker",
    type=click.Choice(["auto", "apache-kafka", "tansu"]),
    default="auto",
    show_default=True,
    help="`auto`: Apache Kafka where Java and Maven are, else Tansu (in memory).",
)
def demo(keep_running: bool, broker: Any) -> None:
    """
    The whole service on this machine: ten example sessions, scored while you watch.

    Starts embedded parts, a worker and the examples in a TARSy-shaped database, and shows the scores as
    their events arrive from Kafka. The judge is a scripted stand-in; set OPENAI_API_KEY or
    OPENAI_BASE_URL (and SCORING_JUDGE_MODEL) to have a real model judge.
    """
    from tarsy_scoring.demo import run_demo
    from tarsy_scoring.lifecycle import run_until_signalled

    set_up_logging("warning", None)
    status = 0

    async def main(stopping: asyncio.Event) -> None:
        nonlocal status
        status = await run_demo(keep_running=keep_running, broker=broker, stopping=stopping)

    _run(run_until_signalled(main))
    sys.exit(status)
