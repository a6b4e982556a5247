"""`export`: writes scores to a file, for training, spreadsheets and other programs."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from tarsy_scoring.commands.shared import moment, progress_bar, run, settings_of_environment
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.records.export import export_scores, written
from tarsy_scoring.wiring import open_migrated_parts

if TYPE_CHECKING:
    from tarsy_scoring.web.queries import ExportQuery

_PARTIAL = ".part"


@click.command()
@click.option("--format", type=click.Choice(["jsonl", "csv"]), help="Score documents, or flat rows. Default: jsonl.")
@click.option(
    "--output", metavar="FILE", help="Default: standard output. The file appears when the export is complete."
)
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option("--status", metavar="STATUS", help="Only scores of this status. Default: completed.")
@click.option("--min-score", "--min", "min_score", type=int, metavar="N", help="Total of at least this.")
@click.option("--max-score", "--max", "max_score", type=int, metavar="N", help="Total of at most this.")
@click.option("--criteria", metavar="NAME", help="Only scores under criteria of this name.")
@click.option("--alert-type", metavar="TYPE", help="Only scores of sessions of this alert type.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Only sessions with this label; repeatable.")
@click.option("--flag", metavar="FLAG", help="Only scores with this flag.")
@click.option("--outcome", metavar="pass|fail", help="Only scores with this outcome.")
@click.option("--since", metavar="TIME", help="Only scores completed since then (RFC 3339, or a date).")
@click.option("--until", metavar="TIME", help="Only scores completed before then.")
@click.option("--prefix", "q", metavar="TEXT", help="Only scores whose session id or alert type begins with this.")
@click.option("--purpose", metavar="PURPOSE", help="production (the default), consistency, anchor or shadow.")
@click.option("--latest", is_flag=True, help="Only the latest completed score of each session.")
def export(output: str | None, since: str | None, until: str | None, **options: Any) -> None:
    """
    Write scores, newest first. By default every completed production score.

    The output equals that of `GET /api/v1/scoring/export`: one score document per line, or CSV. In CSV an
    apostrophe precedes every value that a spreadsheet would run as a formula. Needs only the database.
    """
    settings = settings_of_environment()
    times = {name: moment(text).isoformat() for name, text in (("since", since), ("until", until)) if text is not None}
    query = _query({name: value for name, value in options.items() if value not in (None, ())} | times)
    with _opened(output) as file:
        run(_write(settings, query, file))


def _query(options: dict[str, Any]) -> "ExportQuery":
    """The options as the query model of the API, with its checks. Raises: click.BadParameter,
    click.UsageError.
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


async def _write(settings: Settings, query: "ExportQuery", file: IO[bytes]) -> None:
    async with open_migrated_parts(settings) as parts:
        filters = query.filters(query.status)
        batches = export_scores(parts.reader, filters, purpose=query.purpose, only_latest=query.latest)
        done = 0
        # On a terminal the export itself shows progress.
        with nullcontext(lambda _: None) if file.isatty() else progress_bar("exporting", None) as show:
            async for text, scores in written(batches, query.format):
                file.write(text)
                show(done := done + scores)
        file.flush()


@contextmanager
def _opened(output: str | None) -> Iterator[IO[bytes]]:
    """
    Open standard output, or a file that is renamed into place when complete. A failure keeps an older file.

    Raises:
        click.BadParameter: The file cannot be created.
        click.ClickException: Writing failed.
        BrokenPipeError: The reader of standard output is gone.
    """
    if output in (None, "-"):
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit prints an error
            raise
        return
    place = Path(str(output)).resolve()  # replaces the target of a link, not the link
    if place.is_dir():
        raise click.BadParameter(f"{output} is a directory; name a file in it", param_hint="--output")
    is_device = place.exists() and not place.is_file()
    # Unique, because another export to the same file may be running.
    path = place if is_device else place.with_name(f"{place.name}.{secrets.token_hex(4)}{_PARTIAL}")
    try:
        file = path.open("wb")
    except OSError as error:
        raise click.BadParameter(f"cannot write {output}: {error.strerror}", param_hint="--output") from None
    try:
        with file:
            yield file
        if not is_device:
            path.replace(place)
    except OSError as error:
        raise click.ClickException(f"cannot write {output}: {error.strerror}; make room or choose another") from None
    finally:
        if not is_device:
            path.unlink(missing_ok=True)
