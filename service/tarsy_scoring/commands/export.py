"""`export`: writes scores to a file, for training, spreadsheets and other programs."""

import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
from pydantic import ValidationError

from tarsy_scoring.commands.shared import FAILED, audited, counted, plain, run_on_parts, time_option
from tarsy_scoring.scores.export import export_scores, written
from tarsy_scoring.scoring.training import training_lines
from tarsy_scoring.telemetry.stopping import closing
from tarsy_scoring.timeline.clean.masking import masking_of
from tarsy_scoring.timeline.sources import open_timeline_source
from tarsy_scoring.web.queries import ExportQuery
from tarsy_scoring.wiring import Parts

_MOMENTS = ("since", "until")
_NAMES = {"q": "prefix"}  # options that are not called as the parameter of the API


def _option_of(parameter: str) -> str:
    return "--" + _NAMES.get(parameter, parameter).replace("_", "-")


def _filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option for each parameter of the API's export."""
    for name, field in reversed(ExportQuery.model_fields.items()):
        add = click.option(
            _option_of(name),
            name,
            is_flag=field.annotation is bool,
            multiple=isinstance(field.default, list),
            type=time_option if name in _MOMENTS else None,
            help=field.description,
        )
        command = add(command)
    return command


@click.command()
@_filter_options
@click.option("--with-session", is_flag=True, help="The same as --format chat: training material.")
def export(with_session: bool, **options: Any) -> None:
    """
    Write scores to standard output, newest first. By default every completed production score.

    The output equals that of `GET /api/v1/scoring/export`: one score document per line, or CSV. In CSV an
    apostrophe precedes every value that a spreadsheet would run as a formula. Needs only the database.

    --since and --until are about the time of the score, and not about the end of the session.

    With --format chat each line is a chat for fine-tuning: `messages` with the alert, the agents' tool calls
    and results, masked, and the final analysis as the answer; `tools`; `session_id`, `total_score`, and
    `tarsy_scoring`, a text of JSON with the score and the labels of people. Needs the timeline source, too.
    Exit status 1: scores were left out; stderr names each session with the reason.
    """
    if options["format"] == "chat":
        with_session, options["format"] = True, None
    query = _query({name: value for name, value in options.items() if value not in (None, (), False)})
    if with_session and query.format == "csv":
        raise click.UsageError("--with-session writes JSON lines; leave out --format csv")
    try:
        left_out = run_on_parts(lambda parts: (_write_training if with_session else _write)(parts, query))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit prints an error
        raise
    if left_out:
        click.echo(f"left out: {counted(left_out, 'score')}", err=True)
        sys.exit(FAILED)


def _query(options: dict[str, Any]) -> ExportQuery:
    """
    Check the options with the API's query model.

    Raises:
        click.BadParameter: An option's value is invalid.
        click.UsageError: Two options contradict each other.
    """
    given = {n: v.isoformat() if isinstance(v, datetime) else v for n, v in options.items()}
    try:
        return ExportQuery.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
        message = str(fault["msg"]).removeprefix("Value error, ")
        if not fault["loc"]:
            raise click.UsageError(message) from None
        raise click.BadParameter(message, param_hint=_option_of(str(fault["loc"][0]))) from None


async def _write(parts: Parts, query: ExportQuery) -> int:
    await audited(parts.database, "export", **query.audited)
    async for text in written(export_scores(parts.reader, query.chosen), query.format):
        sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()
    return 0


async def _write_training(parts: Parts, query: ExportQuery) -> int:
    """
    Write a chat for each score.

    Returns:
        How many scores were left out.

    Raises:
        ConfigurationError: No timeline source is configured.
        TimelineUnavailable, StartRefused: The source is away or lacks something; lines written before are
            valid.
    """
    file, left_out = sys.stdout.buffer, 0
    source = open_timeline_source(parts.settings)
    async with closing(source):
        await source.check()
        await audited(parts.database, "export", **query.audited, with_session=True)
        batches = export_scores(parts.reader, query.chosen)
        masking = masking_of(parts.settings.config.masking_patterns)
        lines = training_lines(batches, parts.database, source, masking)
        async for line in lines:
            file.write(line.text)
            if line.why_not:
                left_out += 1
                click.echo(f"left out: {plain(line.why_not)}", err=True)
        file.flush()
    return left_out
