"""The numbers that pages draw, as CSV files: one row per point, bar or table row, unrounded."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tarsy_scoring.analytics.analytics import Distribution, FailureTags, TrendPoint
from tarsy_scoring.analytics.approaches import Approach
from tarsy_scoring.analytics.chain_averages import ChainAverages
from tarsy_scoring.missing_tools.ledger import WantedTool
from tarsy_scoring.scores.export import csv_lines
from tarsy_scoring.web.pages.charts import judge_of, number_judges
from tarsy_scoring.web.pages.period import Choice, PeriodForm, requested_period
from tarsy_scoring.web.problems import Problem

Rows = Iterator[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table. Text of its cells may be hostile; `csv_file` disarms it."""

    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


def download_form(request: Request, *choices: Choice) -> PeriodForm:
    """
    The form of a page from the address of its file, which has the same fields.

    Raises:
        Problem: 422, the form has faults.
    """
    form = requested_period(request, *choices)
    if form.faults:
        raise Problem(422, "Malformed request", "; ".join(form.faults))
    return form


def csv_file(name: str, sheet: Sheet) -> Response:
    """
    A file for the browser to save, named after `name` and the current UTC day.

    Text that a spreadsheet would run as a formula gets an apostrophe in front, as in the export of scores.
    """
    return Response(
        csv_lines([sheet.columns, *sheet.rows]),
        media_type="text/csv; charset=utf-8; header=present",
        headers={
            "Content-Disposition": f'attachment; filename="{name}-{datetime.now(UTC):%Y-%m-%d}.csv"',
            "Cache-Control": "no-store",
        },
    )


def trend_sheet(points: Sequence[TrendPoint]) -> Sheet:
    """Totals per day and judge; judges have the numbers of the chart."""
    numbers = number_judges(points)
    columns = ("day", "judge", "judge_fingerprint", "criteria", "average", "minimum", "maximum", "scores")
    return Sheet(
        columns,
        (
            (
                p.day,
                numbers[judge_of(p)],
                p.judge_fingerprint,
                p.criteria,
                p.average,
                p.minimum,
                p.maximum,
                p.count,
            )
            for p in sorted(points, key=lambda p: (p.day, numbers[judge_of(p)]))
        ),
    )


def chain_sheet(chains: Sequence[ChainAverages]) -> Sheet:
    """Figures of each chain: totals, outcomes, cost in US dollars, and averages per investigation."""
    columns = "chain criteria judges average averaged_scores scores outcomes passed passed_share judging_usd"
    averages = "input_tokens output_tokens agent_usd duration_s"
    return Sheet(
        (*columns.split(), *averages.split()),
        (
            (
                *(c.chain_id, "; ".join(c.criteria), c.judges, c.average, c.count, c.scores),
                *(c.outcomes, c.passed, c.passed_share, c.judging_usd.sum),
                *(getattr(c, name).average for name in averages.split()),
            )
            for c in chains
        ),
    )


def line_sheet(chains: Sequence[ChainAverages], step_days: int) -> Sheet:
    """The small trend lines: the average of each chain and judge over `step_days` from each day on."""

    def rows() -> Rows:
        for chain in chains:
            numbers = number_judges(chain.trend)
            for s in chain.trend:
                yield (
                    chain.chain_id,
                    s.day,
                    step_days,
                    numbers[judge_of(s)],
                    s.judge_fingerprint,
                    s.average,
                    s.count,
                )

    return Sheet(("chain", "day", "days", "judge", "judge_fingerprint", "average", "scores"), rows())


def band_sheet(found: Distribution) -> Sheet:
    """Scores by band, the highest first; the share is that of all totals."""
    count = sum(band.count for band in found.bands) + found.between_bands
    return Sheet(
        ("band", "lowest", "highest", "scores", "share"),
        ((b.band, b.low, b.high, b.count, b.count / count if count else None) for b in reversed(found.bands)),
    )


def category_sheet(found: Distribution) -> Sheet:
    """Averages of categories, over all totals (without a band) and in each band."""

    def rows() -> Rows:
        for band, categories in (
            (None, found.categories),
            *((b.band, b.categories) for b in reversed(found.bands)),
        ):
            for c in categories:
                yield c.criteria, c.category, band, c.average, c.count

    return Sheet(("criteria", "category", "band", "average", "scores"), rows())


def tag_sheet(found: FailureTags) -> Sheet:
    """Failure tags, a row for each chain in which one was found."""
    return Sheet(
        ("failure_tag", "scores", "share", "chain", "chain_scores", "chain_share"),
        ((t.tag, t.count, t.share, c.chain_id, c.count, c.share) for t in found.tags for c in t.by_chain),
    )


def tool_sheet(tools: Sequence[WantedTool]) -> Sheet:
    """Missing tools, a row for each chain that asked for one; one without chains has a row as well."""

    def rows() -> Rows:
        for e in tools:
            spellings = "; ".join(one.name for one in e.spellings)
            chains = [(c.chain_id, c.sessions) for c in e.by_chain] or [(None, 0)]
            for chain in chains:
                yield e.tool_name, e.state, e.exists, spellings, e.sessions, e.points_lost, *chain

    columns = "tool state exists spellings sessions points_lost chain chain_sessions"
    return Sheet(columns.split(), rows())


def approach_sheet(found: Sequence[Approach]) -> Sheet:
    """Better approaches with the number and mean total of the sessions that went another way."""
    return Sheet(
        ("approach", "sessions", "chains", "mean_total"),
        ((a.name, a.sessions, a.chains, a.mean_total) for a in found),
    )
