"""The page that averages chains, and shows one chain from day to day."""

from typing import cast

from fastapi import APIRouter, Request
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from tarsy_scoring.analytics import analytics
from tarsy_scoring.analytics.analytics import DayOf
from tarsy_scoring.analytics.chain_averages import ChainAverages, EveryChain, every_chain
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Analysing
from tarsy_scoring.web.pages.charts import spark_picture, trend_view
from tarsy_scoring.web.pages.downloads import csv_file, download_form
from tarsy_scoring.web.pages.period import (
    DAY_OF,
    KIND,
    PeriodForm,
    period_page,
    requested_period,
)

router = APIRouter(include_in_schema=False)

CHOICES = (DAY_OF, KIND)
AVERAGES = ("input_tokens", "output_tokens", "agent_usd", "duration_s")


@router.get("/trends")
async def trends_page(request: Request, _: Analysing) -> HTMLResponse:
    """Averages by chain; for a chosen chain also totals from day to day, one line per judge."""
    context, form = context_of(request), requested_period(request, *CHOICES)
    if form.faults:
        return await period_page(request, "trends.html", form)
    database, day_of = context.analytics.database, cast(DayOf, form.chosen)
    selection = form.selection
    chains = await every_chain(database, selection, day_of)
    view = None
    if selection.chain is not None:
        found = await analytics.trends(database, selection, day_of)
        view = trend_view(found.points, f"Totals per day, {form.period}")
    return await period_page(
        request,
        "trends.html",
        form,
        rows=chain_rows(chains, form),
        chains_left_out=chains.chains_left_out,
        view=view,
        left_out=sum(chain.left_out for chain in chains.chains),
    )


@router.get("/trends.csv")
async def trends_file(request: Request, _: Analysing) -> Response:
    """The chains as CSV; for a chosen chain totals per day and judge."""
    context, form = context_of(request), download_form(request, *CHOICES)
    database, day_of = context.analytics.database, cast(DayOf, form.chosen)
    selection = form.selection
    if selection.chain is None:
        chains = (await every_chain(database, selection, day_of)).chains
        columns = (
            "chain criteria judges average averaged_scores scores outcomes passed passed_share judging_usd"
        )
        return csv_file("chains", f"{columns} {' '.join(AVERAGES)}", map(_figures, chains))
    view = trend_view((await analytics.trends(database, selection, day_of)).points, "")
    rows = (
        (p.day, judge, p.judge_fingerprint, p.criteria, p.average, p.minimum, p.maximum, p.count)
        for judge, p in view.rows
    )
    return csv_file("trends", "day judge judge_fingerprint criteria average minimum maximum scores", rows)


def _figures(chain: ChainAverages) -> list[object]:
    criteria = "; ".join(chain.criteria)
    totals = [chain.chain_id, criteria, chain.judges, chain.average, chain.count, chain.scores]
    outcomes = [chain.outcomes, chain.passed, chain.passed_share, chain.judging_usd.sum]
    return [*totals, *outcomes, *(getattr(chain, name).average for name in AVERAGES)]


def chain_rows(found: EveryChain, form: PeriodForm) -> list[tuple[ChainAverages, Markup, str]]:
    """
    Each chain with a trend picture, and the query that selects it; empty where the form cannot.

    All pictures share one range.
    """
    days = [step.day for chain in found.chains for step in chain.trend]
    rows = []
    for chain in found.chains:
        picture = spark_picture(chain.trend, min(days), max(days)) if days else Markup("")
        is_linked = bool(chain.chain_id) and chain.chain_id != form.values["chain"]
        rows.append((chain, picture, form.query_with(chain=chain.chain_id or "") if is_linked else ""))
    return rows
