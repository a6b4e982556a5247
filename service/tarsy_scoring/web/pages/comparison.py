"""The page that compares two scores for one session: first whether they are comparable, then what differs."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.web.api.common import require_score
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.rendering import count, page, percent, points, seconds, spelt, usd
from tarsy_scoring.web.queries import CompareQuery, read_form

router = APIRouter(include_in_schema=False)

Document = Mapping[str, Any]


@router.get("/scores/compare")
async def compare_page(request: Request, _: Admitted) -> HTMLResponse:
    """
    Two scores for one session side by side.

    Raises:
        Problem: 404, one does not exist; 400, their sessions differ; 422, a malformed address.
    """
    form = read_form(request.scope["query_string"], CompareQuery)
    if form.query is None:
        advice = "the address needs the ids of two scores, as in /scores/compare?a=ID&b=ID"
        raise Problem(422, "Malformed address", f"{advice}: {'; '.join(form.faults)}")
    context = context_of(request)
    a, b = await asyncio.gather(*(require_score(context, one) for one in (form.query.a, form.query.b)))
    if a["session_id"] != b["session_id"]:
        advice = "choose two scores from the history on the page of one session"
        raise Problem(400, "Different sessions", f"the two scores are of different sessions: {advice}")
    return await asyncio.to_thread(
        page,
        "compare.html",
        here="/",
        criteria=context.registry,
        session_id=a["session_id"],
        scores=(a, b),
        reasons=reasons(a, b),
        has_totals=a["total_score"] is not None and b["total_score"] is not None,
        rows=rows(facts(a), facts(b)),
    )


def reasons(a: Document, b: Document) -> list[str]:
    """Why the totals do not compare, each as a sentence; empty: they do."""
    found = []
    if a["criteria"] != b["criteria"]:
        found.append("They were judged by different criteria.")
    elif a["criteria_hash"] != b["criteria_hash"]:
        found.append("The text of the criteria changed in between.")
    elif a["judge_fingerprint"] != b["judge_fingerprint"]:
        found.append("They have different judges: another model, provider, sampling or rendering.")
    if bool(a["reference"]) != bool(b["reference"]):
        found.append("One was judged against a reference: they answer different questions.")
    return found


def facts(one: Document) -> dict[str, float | str | None]:
    """What the judge found, what judged, and what it took."""
    turn = next(iter(one["turns"]), None)
    started, completed = one["started_at"], one["completed_at"]
    parts = {**(one["score_breakdown"] or {}), **(one["rubric"] or {}).get("scores", {})}
    return {
        "Total": one["total_score"],
        **{spelt(name).capitalize(): value for name, value in parts.items()},
        "Status": words.state_of(one).text,
        "Outcome that the judge states": spelt(one["judge_outcome"] or ""),
        "Result": {"pass": "passed", "fail": "did not pass"}.get(one["outcome"] or ""),
        "Citations that hold": percent((one["grounding"] or {}).get("share")),
        "Missing tools": ", ".join(tool["tool_name"] for tool in one["missing_tools"]),
        "Flags": ", ".join(map(spelt, one["flags"])),
        "Failure tags": ", ".join(map(spelt, one["failure_tags"])),
        "Criteria": one["criteria"],
        "Model and provider": turn
        and f"{turn['model_served'] or turn['model_requested']} at {turn['provider']}",
        "Fingerprint of the judge": (one["judge_fingerprint"] or "")[:12],
        "Judged against a reference": "yes" if one["reference"] else "no",
        "Shown to the judge": percent((one["coverage"] or {}).get("shown_share")),
        "Purpose": one["purpose"],
        "Cost": usd(one["usage"].get("cost_usd")),
        "Tokens in": count(one["usage"].get("input_tokens")),
        "Tokens out": count(one["usage"].get("output_tokens")),
        "Time": seconds((completed - started).total_seconds()) if started and completed else None,
    }


def rows(
    a: Mapping[str, float | str | None], b: Mapping[str, float | str | None]
) -> list[tuple[str, str, str, str]]:
    """Names with both values and, between two numbers, the difference."""
    return [
        (name, _text(a.get(name)), _text(b.get(name)), _change(a.get(name), b.get(name)))
        for name in {**a, **b}
    ]


def _text(value: float | str | None) -> str:
    return points(value) if isinstance(value, int | float) else value or "–"


def _change(a: float | str | None, b: float | str | None) -> str:
    if a == b or not isinstance(a, int | float) or not isinstance(b, int | float):
        return ""
    return f"{b - a:+.2f}".rstrip("0").rstrip(".").replace("-", "−")
