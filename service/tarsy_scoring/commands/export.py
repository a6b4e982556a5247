"""`export`: writes scores to a file, for training, spreadsheets and other programs."""

import os
import sys
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from tarsy_scoring.commands.shared import audited, moment, progress_bar, run_on_parts
from tarsy_scoring.records.export import export_scores, written
from tarsy_scoring.wiring import Parts

if TYPE_CHECKING:
    from tarsy_scoring.web.queries import ExportQuery


@click.command()
@click.option("--format", type=click.Choice(["jsonl", "csv"]), help="Score documents, or flat rows. Default: jsonl.")
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option("--status", metavar="STATUS", help="Only scores of this status. Default: completed.")
@click.option("--min-score", "--min", "min_score", type=int, metavar="N", help="Total of at least this.")
@click.option("--max-score", "--max", "max_score", type=int, metavar="N", help="Total of at most this.")
@click.option("--criteria", metavar="NAME", help="Only scores under criteria of this name.")
@click.option("--alert-type", metavar="TYPE", help="Only scores of sessions of this alert type.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Only sessions with this label; repeatable.")
@click.option("--flag", metavar="FLAG", help="Only scores with this flag.")
@click.option("--outcome", metavar="pass|fail", help="Only scores with this outcome.")
@click.option("--since", type=moment, metavar="TIME", help="Only scores completed since then (RFC 3339, or a date).")
@click.option("--until", type=moment, metavar="TIME", help="Only scores completed before then.")
@click.option("--prefix", "q", metavar="TEXT", help="Only scores whose session id or alert type begins with this.")
@click.option("--purpose", metavar="PURPOSE", help="production (the default), consistency, anchor or shadow.")
@click.option("--latest", is_flag=True, help="Only the latest completed score of each session.")
def export(since: datetime | None, until: datetime | None, **options: Any) -> None:
    """
    Write scores to standard output, newest first. By default every completed production score.

    The output equals that of `GET /api/v1/scoring/export`: one score document per line, or CSV. In CSV an
    apostrophe precedes every value that a spreadsheet would run as a formula. Needs only the database.
    """
    times = {name: at.isoformat() for name, at in (("since", since), ("until", until)) if at is not None}
    query = _query({name: value for name, value in options.items() if value not in (None, ())} | times)
    try:
        run_on_parts(lambda parts: _write(parts, query))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit prints an error
        raise


def _query(options: dict[str, Any]) -> "ExportQuery":
    """
    Check the options with the query model of the API.

    Raises:
        click.BadParameter: The value of an option is invalid.
        click.UsageError: Two options contradict each other.
    """
    from tarsy_scoring.web.queries import ExportQuery

    try:
        return ExportQuery.model_validate(options)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        message = str(fault["msg"]).removeprefix("Value error, ")
        if not fault["loc"]:
            raise click.UsageError(message) from None
        name = {"q": "prefix"}.get(str(fault["loc"][0]), str(fault["loc"][0]).replace("_", "-"))
        raise click.BadParameter(message, param_hint=f"--{name}") from None


async def _write(parts: Parts, query: "ExportQuery") -> None:
    file = sys.stdout.buffer
    await audited(parts.database, "export", **query.audited)
    filters = query.filters(query.status)
    batches = export_scores(parts.reader, filters, purpose=query.purpose, only_latest=query.latest)
    done = 0
    # On a terminal the export itself shows progress.
    with nullcontext(lambda _: None) if file.isatty() else progress_bar("exporting", None) as show:
        async for text, scores in written(batches, query.format):
            file.write(text)
            show(done := done + scores)
    file.flush()
