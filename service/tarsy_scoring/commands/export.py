"""`export`: scores as a file, for training, spreadsheets and other programs."""

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
from tarsy_scoring.wiring import open_parts, require_migrated

if TYPE_CHECKING:
    from tarsy_scoring.web.queries import ExportQuery

_PARTIAL = ".part"


@click.command()
@click.option("--format", type=click.Choice(["jsonl", "csv"]), help="Score documents, or flat rows. Default: jsonl.")
@click.option("--output", metavar="FILE", help="Default: standard output. A whole export or nothing gets this name.")
@click.option("--chain", metavar="NAME", help="Only scores of this chain.")
@click.option("--status", metavar="STATUS", help="Only scores of this status. Default: completed.")
@click.option("--min-score", "--min", "min_score", type=int, metavar="N", help="Total of at least this.")
@click.option("--max-score", "--max", "max_score", type=int, metavar="N", help="Total of at most this.")
@click.option("--criteria", metavar="NAME", help="Only scores under criteria of this name.")
@click.option("--alert-type", metavar="TYPE", help="Only of sessions of this alert type.")
@click.option("--label", metavar="NAME=VALUE", multiple=True, help="Only of sessions with this label; may be repeated.")
@click.option("--flag", metavar="FLAG", help="Only scores with this flag.")
@click.option("--outcome", metavar="pass|fail", help="Only scores that came to this.")
@click.option("--since", metavar="TIME", help="Only scores completed since then (RFC 3339, or a date).")
@click.option("--until", metavar="TIME", help="Only scores completed before then.")
@click.option("--prefix", "q", metavar="TEXT", help="Only where session id or alert type begins so.")
@click.option("--purpose", metavar="PURPOSE", help="production (the default), consistency, anchor or shadow.")
@click.option("--latest", is_flag=True, help="Of several completed scores of a session, the latest alone.")
def export(output: str | None, since: str | None, until: str | None, **options: Any) -> None:
    """
    Write scores, the newest first: every completed production score, unless the options say otherwise.

    The same as `GET /api/v1/scoring/export` gives: a line for each score document, or CSV in which what a spreadsheet
    would run as a formula has an apostrophe in front. Needs the database alone.
    """
    settings = settings_of_environment()
    times = {name: moment(text).isoformat() for name, text in (("since", since), ("until", until)) if text is not None}
    query = _query({name: value for name, value in options.items() if value not in (None, ())} | times)
    with _opened(output) as file:
        run(_write(settings, query, file))


def _query(options: dict[str, Any]) -> "ExportQuery":
    """The question as the API takes it, with its checks. Raises: click.BadParameter, click.UsageError."""
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
    async with open_parts(settings) as parts:
        await require_migrated(parts.database, wait=False)
        filters = query.filters(query.status)
        batches = export_scores(parts.reader, filters, purpose=query.purpose, only_latest=query.latest)
        done = 0
        # On the terminal the export itself is what shows that it goes on.
        with nullcontext(lambda _: None) if file.isatty() else progress_bar("exporting", None) as show:
            async for text, scores in written(batches, query.format):
                file.write(text)
                show(done := done + scores)
        file.flush()


@contextmanager
def _opened(output: str | None) -> Iterator[IO[bytes]]:
    """
    Standard output, or a file that gets its name when it is whole; what breaks off leaves an older one as it was.

    Raises:
        click.BadParameter: There can be no such file.
        click.ClickException: It could not be written to its end.
        BrokenPipeError: Nobody reads standard output any more.
    """
    if output in (None, "-"):
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
            raise
        return
    place = Path(str(output)).resolve()  # what a link leads to is replaced, and not the link
    if place.is_dir():
        raise click.BadParameter(f"{output} is a folder: name a file in it", param_hint="--output")
    is_device = place.exists() and not place.is_file()
    # A name of its own: another export to the same file may be under way.
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
