"""`score FILE`: scores one session file."""

import os
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import click

from tarsy_scoring.commands.shared import (
    FAILED,
    asker,
    counted,
    json_option,
    may_spend,
    print_json,
    print_text,
    require_known,
    run,
    spend_option,
    usd,
)
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import RetryLater, Unscorable
from tarsy_scoring.events import MAX_REFERENCE_CHARACTERS, GivenReference
from tarsy_scoring.judge.criteria import CriteriaRegistry, load_criteria, read_criteria_file
from tarsy_scoring.scoring.offline import DryRun
from tarsy_scoring.scoring.offline import dry_run as plan
from tarsy_scoring.timeline.files import load_session_file, parse_session
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring.timeline.text import storable

# A dry run is waited for at a prompt, so functions import what only a score, a reference or a failure needs.


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@click.option("--no-judge", is_flag=True, help="Skip the judge: no total.")
@click.option("--dry-run", is_flag=True, help="Show the masked prompt, its tokens and cost; call no model.")
@click.option("--chain", metavar="NAME", help="Use the settings of this chain instead of the session's own.")
@click.option(
    "--reference",
    "reference_file",
    type=click.File(encoding="utf-8"),
    help="Judge against this text: the cause as it is known now.",
)
@click.option("--criteria", metavar="NAME|FILE", help="Try these criteria: a name, or a criteria file.")
@spend_option
def score(
    file: Path,
    as_json: bool,
    no_judge: bool,
    dry_run: bool,
    chain: str | None,
    reference_file: TextIO | None,
    criteria: str | None,
) -> None:
    """
    Score one session file; needs neither Kafka nor a database.

    FILE is a session in JSON, as in a folder of SCORING_TIMELINE_SOURCE=files. The providers of the chain are
    tried in order; by default there is one, from OPENAI_BASE_URL and OPENAI_API_KEY. In a pipeline,
    --no-judge gives only interaction metrics and the chain's gates, without a model or a key.

    Exit status 0: scored, and the outcome is not `fail`; 1: outcome `fail` (a gate failed, or the total is
    below the threshold) or no score; the document gives outcome_reason or error_kind. 2: FILE is not a
    session, or the reference is not a text of 1 to 20,000 characters in UTF-8.
    """
    settings = load_settings()
    registry = _with_tried(load_criteria(settings.config.criteria_dirs), criteria)
    if chain is not None:
        require_known("chain", chain, settings.config.chains, "--chain")
    if reference_file and no_judge:
        raise click.UsageError("--reference needs the judge and excludes --no-judge")
    given, shown = _read_reference(reference_file) if reference_file else None, None
    session_id, chain_id = storable(file.stem), chain  # as in a folder, where the content is of no use
    try:
        timeline = parse_session(load_session_file(file, settings.max_session_bytes))
        session_id, chain_id = timeline.session_id, chain or timeline.chain_id
        of_chain = settings.chain(chain_id)
        with_judge = not no_judge and of_chain.judge
        if given is not None:
            timeline, shown = _with_reference(timeline, given, settings)
        if dry_run:
            planned = plan(settings, registry, timeline, chain)
            _show_dryrun(planned, may_judge_again=of_chain.may_judge_again, as_json=as_json)
            return
        if with_judge:
            with suppress(Unscorable, RetryLater):  # then there is no call, and the document says why
                planned = plan(settings, registry, timeline, chain)
                click.echo(_cost_in_words(planned, may_judge_again=of_chain.may_judge_again), err=True)
                may_spend(is_named=True)
        scored = _score(settings, registry, timeline, chain, with_judge=with_judge, reference=shown)
    except Unscorable as error:
        if dry_run or not as_json:
            raise
        print_json(_failed_document(settings, registry, session_id, chain_id, error))
        sys.exit(FAILED)
    print_json(scored) if as_json else print_text("score.txt", scored)
    has_no_score = scored["status"] != "completed" or (with_judge and scored["total_score"] is None)
    sys.exit(FAILED if has_no_score or scored["outcome"] == "fail" else 0)


def _with_tried(registry: CriteriaRegistry, criteria: str | None) -> CriteriaRegistry:
    """The criteria, where those with this name, or in this file, are tried. Raises: BadParameter."""
    if criteria is None or criteria in registry:
        return CriteriaRegistry(registry, criteria)
    if not Path(criteria).is_file():
        known = ", ".join(c.name for c in registry)
        raise click.BadParameter(
            f"no criteria and no file are called {criteria!r} (known: {known})", param_hint="--criteria"
        )
    own = read_criteria_file(Path(criteria))
    return CriteriaRegistry([*registry, own], own.name)


def _read_reference(file: TextIO) -> GivenReference:
    try:
        return GivenReference(text=file.read(MAX_REFERENCE_CHARACTERS + 1))
    except ValueError:  # not UTF-8, or refused by the model
        reason = f"{file.name} is not a text of 1 to {MAX_REFERENCE_CHARACTERS:,} characters in UTF-8"
        raise click.BadParameter(reason, param_hint="--reference") from None


def _with_reference(
    timeline: Timeline, given: GivenReference, settings: Settings
) -> tuple[Timeline, dict[str, Any]]:
    """The session with the reference, and the reference as a score document shows it."""
    from tarsy_scoring.references.model import reference_of
    from tarsy_scoring.scores.shapes import Reference

    reference = reference_of(given, timeline.session_id, settings.config.masking_patterns, by=asker())
    shown = {name: getattr(reference, name) for name in Reference.model_fields}
    return replace(timeline, reference=reference.text), shown


def _score(
    settings: Settings,
    registry: CriteriaRegistry,
    timeline: Timeline,
    chain: str | None,
    *,
    with_judge: bool,
    reference: dict[str, Any] | None,
) -> dict[str, Any]:
    from rich.console import Console

    from tarsy_scoring.gates.containment import contain_commands
    from tarsy_scoring.scoring.offline import score_offline
    from tarsy_scoring.telemetry.logging import set_up_logging
    from tarsy_scoring.telemetry.stopping import closing

    set_up_logging(settings.log_level, settings.log_format)
    contain_commands(settings, os.environ)

    async def work() -> dict[str, Any]:
        clients: dict[str, Any] = {}  # for the judge, whose library takes a second to import
        if with_judge:
            from tarsy_scoring.judge.ask.client import create_clients

            clients = create_clients(settings)
        async with closing(*clients.values()):
            return await score_offline(
                settings, registry, clients, timeline, chain, with_judge=with_judge, reference=reference
            )

    with Console(stderr=True).status("scoring ..."):  # prints nothing where stderr is no terminal
        return run(work())


def _failed_document(
    settings: Settings, registry: CriteriaRegistry, session_id: str, chain_id: str | None, error: Unscorable
) -> dict[str, Any]:
    """Score document for a session that could not be scored, with the error's kind and message."""
    from tarsy_scoring.scores.document import document, unstored_row

    of_chain = settings.chain(chain_id)
    criteria = registry.tried or of_chain.criteria
    current = registry.of_chain(of_chain).criteria_hash if criteria in registry else None
    row = {
        **unstored_row(session_id, chain_id, criteria, current, datetime.now(UTC)),
        "purpose": "shadow" if registry.tried else "production",
        "status": "failed",
        "error_kind": error.error_kind,
        "error_message": str(error),
    }
    return document(row, lambda _name, _chain: current)


def _show_dryrun(planned: DryRun, *, may_judge_again: bool, as_json: bool) -> None:
    if as_json:
        print_json(asdict(planned))
        return
    for message in planned.messages:
        click.echo(f"--- {message.role} ---\n{message.content}")
    summary = f"about {planned.tokens} tokens in the first turn; {_cost_in_words(planned, may_judge_again=may_judge_again)}"
    click.echo(f"--- {summary} ---", err=True)


def _cost_in_words(planned: DryRun, *, may_judge_again: bool) -> str:
    if not planned.calls:
        return "no model would be called: this chain has no judge"
    calls = ("up to " if may_judge_again else "") + counted(planned.calls, "call")
    if planned.cost_usd is None:
        return f"{calls}, reminders and repairs not counted; the cost is unknown (no prices are configured)"
    return f"{calls} with full answers: up to {usd(planned.cost_usd)}; reminders and repairs not counted"
