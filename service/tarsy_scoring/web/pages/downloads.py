"""Page numbers as CSV files, unrounded."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tarsy_scoring.scores.export import csv_lines
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages.period import Choice, PeriodForm, requested_period


def download_form(request: Request, *choices: Choice) -> PeriodForm:
    """
    Read the address of a file, which has the same fields as the page.

    Raises:
        Problem: 422, the form has faults.
    """
    form = requested_period(request, *choices)
    if form.faults:
        raise Problem(422, "Malformed request", "; ".join(form.faults))
    return form


def csv_file(name: str, columns: str, rows: Iterable[Sequence[Any]]) -> Response:
    """
    A file for the browser to save, named after `name` and the current UTC day.

    Text that a spreadsheet would run as a formula gets an apostrophe in front, as in exports.

    Args:
        columns: Their names, separated by blanks.
    """
    return Response(
        csv_lines([columns.split(), *rows]),
        media_type="text/csv; charset=utf-8; header=present",
        headers={
            "Content-Disposition": f'attachment; filename="{name}-{datetime.now(UTC):%Y-%m-%d}.csv"',
            "Cache-Control": "no-store",
        },
    )
