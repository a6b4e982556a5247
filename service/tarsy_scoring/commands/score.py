"""`score FILE`: one session, here and now."""

import contextlib
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tarsy_scoring import offline
from tarsy_scoring.commands.shared import FAILED, print_json, run, settings_of_environment
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.llm import create_clients
from tarsy_scoring.timeline.files import read_session_file


@click.command()
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
    settings = settings_of_environment()
    registry = load_criteria(settings.config.criteria_dirs)
    if chain is not None and chain not in settings.config.chains:
        known = ", ".join(sorted(settings.config.chains)) or "none is configured"
        raise click.BadParameter(f"no chain is called {chain!r} (known: {known})", param_hint="--chain")
    timeline = read_session_file(file)
    if dry_run:
        _show_dryrun(offline.dry_run(settings, registry, timeline, chain), as_json)
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
    with console.status("judging ...") if with_judge and console.is_terminal else contextlib.nullcontext():
        document = run(work())
    print_json(document) if as_json else _show_score(document)
    has_no_score = document["status"] != "completed" or (with_judge and document["total_score"] is None)
    sys.exit(FAILED if has_no_score or document["outcome"] == "fail" else 0)


def _show_dryrun(run: Any, as_json: bool) -> None:
    if as_json:
        messages = [{"role": m.role, "content": m.content} for m in run.messages]
        print_json(
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
