"""The page that compares two scores for one session: first whether they are comparable, then what differs."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.audit import audit
from tarsy_scoring.scores.reader import Reader
from tarsy_scoring.web.api.common import no_such_score
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Admitted
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.rendering import count, page, percent, points, seconds, spelt, usd
from tarsy_scoring.web.pages.score_view import in_order, judged_by
from tarsy_scoring.web.queries import CompareQuery, read_form

router = APIRouter(include_in_schema=False)

Document = Mapping[str, Any]
Value = Callable[[Document], str | None]


def _model(one: Document) -> str | None:
    turn = next(iter(one["turns"]), None)
    return f"{turn['model_served'] or turn['model_requested']} at {turn['provider']}" if turn else None


def _duration(one: Document) -> str | None:
    if one["started_at"] is None or one["completed_at"] is None:
        return None
    return seconds((one["completed_at"] - one["started_at"]).total_seconds())


# What judged, and what it was shown.
JUDGE: Mapping[str, Value] = {
    "Criteria": lambda one: one["criteria"],
    "Text of the criteria": lambda one: (one["criteria_hash"] or "")[:12],
    "Model and provider": _model,
    "Fingerprint of the judge": lambda one: (one["judge_fingerprint"] or "")[:12],
    "Judged against a reference": lambda one: "yes" if one["reference"] else "no",
    "Shown to the judge": lambda one: percent((one["coverage"] or {}).get("shown_share")),
    "Purpose": lambda one: one["purpose"],
}
RESULTS: Mapping[str, Value] = {
    "Status": lambda one: words.badge(one["status"], error_kind=one["error_kind"]).text,
    "Outcome that the judge states": lambda one: spelt(one["judge_outcome"] or ""),
    "Result": lambda one: {"pass": "passed", "fail": "did not pass"}.get(one["outcome"] or ""),
    "Threshold": lambda one: points(one["pass_threshold"]),
    "Citations that hold": lambda one: percent((one["grounding"] or {}).get("share")),
}
EFFORT: Mapping[str, Value] = {
    "Cost": lambda one: usd(one["usage"].get("cost_usd")),
    "Tokens in": lambda one: count(one["usage"].get("input_tokens")),
    "Tokens out": lambda one: count(one["usage"].get("output_tokens")),
    "Time": _duration,
}
NAMES: Mapping[str, Callable[[Document], Sequence[str]]] = {
    "Missing tools": lambda one: [tool["tool_name"] for tool in one["missing_tools"]],
    "Flags": lambda one: [spelt(flag) for flag in one["flags"]],
    "Failure tags": lambda one: [spelt(tag) for tag in one["failure_tags"]],
}


class ComparedRow(NamedTuple):
    """One table line. `change`: the second value minus the first one; empty where that says nothing."""

    name: str
    a: str
    b: str
    change: str = ""

    @property
    def differs(self) -> bool:
        """Whether to mark the line."""
        return self.a != self.b


class ComparedNames(NamedTuple):
    """Names that one score has, or both."""

    title: str
    only_a: Sequence[str]
    only_b: Sequence[str]
    both: Sequence[str]


@router.get("/scores/compare")
async def compare_page(request: Request, caller: Admitted) -> HTMLResponse:
    """
    Two scores for one session side by side.

    Raises:
        Problem: 404, one does not exist; 400, their sessions differ; 422, a malformed address.
    """
    form = read_form(request.scope["query_string"], CompareQuery)
    if form.query is None:
        advice = "the address needs the ids of two scores, as in /scores/compare?a=ID&b=ID"
        raise Problem(422, "Malformed address", f"{advice}: {'; '.join(form.faults)}")
    reader = context_of(request).reader
    a, b = await asyncio.gather(reader.score(form.query.a), reader.score(form.query.b))
    if a is None or b is None:
        raise no_such_score(form.query.a if a is None else form.query.b)
    if a["session_id"] != b["session_id"]:
        advice = "choose two scores from the history on the page of one session"
        raise Problem(400, "Different sessions", f"the two scores are of different sessions: {advice}")
    audit.log_read("session", by=caller.name, session_id=a["session_id"])
    most = await _max_points(reader, a) | await _max_points(reader, b)
    return await asyncio.to_thread(page, "compare.html", here="/", **values(a, b, most))


async def _max_points(reader: Reader, one: Document) -> dict[str, float]:
    known = await reader.criteria(one["criteria_hash"] or "")
    return judged_by(known["content"] if known else {})["max_points"]


def values(a: Document, b: Document, most: Mapping[str, float]) -> dict[str, Any]:
    """
    Values for `compare.html`.

    Args:
        most: Most points per category, in the order that the criteria define.
    """
    names = [_names(title, given(a), given(b)) for title, given in NAMES.items()]
    return {
        "session_id": a["session_id"],
        "scores": (a, b),
        "reasons": reasons(a, b),
        "has_totals": a["total_score"] is not None and b["total_score"] is not None,
        "judge": _rows(JUDGE, a, b),
        "results": [_numbers("Total", a["total_score"], b["total_score"]), *_rows(RESULTS, a, b)],
        "breakdown": breakdown_rows(a, b, most),
        "names": [found for found in names if any(found[1:])],
        "is_same_analysis": bool(a["score_analysis"]) and a["score_analysis"] == b["score_analysis"],
        "effort": _rows(EFFORT, a, b),
    }


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
        found.append(
            "One was judged against a reference, the other without: they answer different questions."
        )
    return found


def breakdown_rows(a: Document, b: Document, most: Mapping[str, float]) -> list[ComparedRow]:
    """Points by category as the criteria order them, then rubric items."""
    pairs = [(a["score_breakdown"] or {}, b["score_breakdown"] or {}), (_rubric(a), _rubric(b))]
    rows = []
    for first, second in pairs:
        for name in in_order({**first, **second}, most):
            limit = f" (of {points(most[name])})" if name in most else ""
            rows.append(_numbers(f"{spelt(name).capitalize()}{limit}", first.get(name), second.get(name)))
    return rows


def _rubric(one: Document) -> Mapping[str, float]:
    scores: Mapping[str, float] = (one["rubric"] or {}).get("scores", {})
    return scores


def _rows(table: Mapping[str, Value], a: Document, b: Document) -> list[ComparedRow]:
    return [ComparedRow(name, of(a) or "–", of(b) or "–") for name, of in table.items()]


def _numbers(name: str, a: float | None, b: float | None) -> ComparedRow:
    change = ""
    if a is not None and b is not None and a != b:
        change = f"{b - a:+.2f}".rstrip("0").rstrip(".").replace("-", "−")
    return ComparedRow(name, points(a), points(b), change)


def _names(title: str, a: Sequence[str], b: Sequence[str]) -> ComparedNames:
    """Compare names without regard to case. A name that is given twice counts once."""
    first, second = ({name.casefold(): name for name in given} for given in (a, b))
    return ComparedNames(
        title,
        [name for key, name in first.items() if key not in second],
        [name for key, name in second.items() if key not in first],
        [name for key, name in first.items() if key in second],
    )
