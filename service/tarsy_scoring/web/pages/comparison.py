"""The page that compares two scores of one session: first whether they are comparable, then what differs."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from tarsy_scoring.audit import audit
from tarsy_scoring.web.api.common import no_such_score
from tarsy_scoring.web.context import context_of
from tarsy_scoring.web.edge.access import Reading
from tarsy_scoring.web.edge.problems import Problem
from tarsy_scoring.web.pages import words
from tarsy_scoring.web.pages.rendering import count, page, percent, points, seconds, spelt, usd
from tarsy_scoring.web.queries import CompareQuery, read_form

router = APIRouter(include_in_schema=False)

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """
    One line of a table of both scores.

    Args:
        change: The second value minus the first one; empty where that says nothing.
    """

    name: str
    a: str
    b: str
    change: str = ""

    @property
    def differs(self) -> bool:
        """Whether the two values differ."""
        return self.a != self.b


@dataclass(frozen=True, slots=True)
class Names:
    """Names that one of the scores has, or both: missing tools, flags or failure tags."""

    title: str
    only_a: Sequence[str]
    only_b: Sequence[str]
    both: Sequence[str]


@router.get("/scores/compare")
async def compare_page(request: Request, caller: Reading) -> HTMLResponse:
    """
    Two scores of one session side by side.

    Raises:
        Problem: 404, one of them does not exist; 400, they are of different sessions; 422, a malformed
            address.
    """
    form = read_form(request.scope["query_string"], CompareQuery)
    if form.query is None:
        advice = "the address needs the ids of two scores, as in /scores/compare?a=ID&b=ID"
        raise Problem(422, "Malformed address", f"{advice}: {'; '.join(form.faults)}")
    reader = context_of(request).reader
    ids = form.query.a, form.query.b
    a, b = [await reader.score(score_id) for score_id in ids]
    if a is None or b is None:
        raise no_such_score(ids[0] if a is None else ids[1])
    if a["session_id"] != b["session_id"]:
        advice = "choose two scores from the history on the page of one session"
        raise Problem(400, "Different sessions", f"the two scores are of different sessions: {advice}")
    audit.log_read("session", by=caller.name, session_id=a["session_id"])
    contents = [
        await reader.criteria(one["criteria_hash"]) if one["criteria_hash"] else None for one in (a, b)
    ]
    categories = [known["content"].get("categories") or () if known else () for known in contents]
    return await asyncio.to_thread(page, "compare.html", here="/", **values(a, b, categories))


def values(a: Document, b: Document, categories: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """
    Values of `compare.html`.

    Args:
        categories: Those of the stored criteria of each score, for the order and the most points of the
            breakdown.
    """
    return {
        "session_id": a["session_id"],
        "scores": (a, b),
        "reasons": reasons(a, b),
        "has_totals": a["total_score"] is not None and b["total_score"] is not None,
        "judge": judge_rows(a, b),
        "results": result_rows(a, b),
        "breakdown": breakdown_rows(a, b, categories),
        "names": [found for found in names(a, b) if found.only_a or found.only_b or found.both],
        "is_same_analysis": bool(a["score_analysis"]) and a["score_analysis"] == b["score_analysis"],
        "effort": effort_rows(a, b),
    }


def reasons(a: Document, b: Document) -> list[str]:
    """Why the totals of two scores do not compare, each as a sentence; empty: they do."""
    found = []
    if a["criteria_hash"] != b["criteria_hash"]:
        same = a["criteria"] == b["criteria"]
        found.append(
            "The text of the criteria changed in between."
            if same
            else "They were judged by different criteria."
        )
    elif a["judge_fingerprint"] != b["judge_fingerprint"]:
        found.append(
            "They are of different judges: another model, provider, sampling or rendering of the session."
        )
    if bool(a["reference"]) != bool(b["reference"]):
        found.append(
            "One was judged against a reference, the other without: they answer different questions."
        )
    return found


def judge_rows(a: Document, b: Document) -> list[Row]:
    """What judged, and what it was shown."""
    return [
        _row("Criteria", a, b, lambda one: one["criteria"]),
        _row("Text of the criteria", a, b, lambda one: _short(one["criteria_hash"])),
        _row("Model and provider", a, b, _model),
        _row("Fingerprint of the judge", a, b, lambda one: _short(one["judge_fingerprint"])),
        _row("Judged against a reference", a, b, lambda one: "yes" if one["reference"] else "no"),
        _row("Shown to the judge", a, b, lambda one: percent((one["coverage"] or {}).get("shown_share"))),
        _row("Purpose", a, b, lambda one: one["purpose"]),
    ]


def result_rows(a: Document, b: Document) -> list[Row]:
    """Total and outcome."""
    shares = [(one["grounding"] or {}).get("share") for one in (a, b)]
    return [
        _row("Status", a, b, lambda one: words.badge(one["status"], error_kind=one["error_kind"]).text),
        _numbers("Total", a["total_score"], b["total_score"]),
        _row("Outcome that the judge states", a, b, lambda one: spelt(one["judge_outcome"] or "")),
        _row(
            "Result",
            a,
            b,
            lambda one: {"pass": "passed", "fail": "did not pass"}.get(one["outcome"] or "", ""),
        ),
        _row("Threshold", a, b, lambda one: points(one["pass_threshold"])),
        Row("Citations that hold", percent(shares[0]), percent(shares[1])),
    ]


def breakdown_rows(a: Document, b: Document, categories: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Points by category, in the order of the criteria; rubric items where the strategy is a rubric."""
    known = {one["id"]: one["max_points"] for of_score in categories for one in of_score}
    first, second = a["score_breakdown"] or {}, b["score_breakdown"] or {}
    listed = [name for name in known if name in first or name in second]
    rows = []
    for name in dict.fromkeys([*listed, *first, *second]):
        most = f" (of {points(known[name])})" if name in known else ""
        rows.append(_numbers(f"{spelt(name).capitalize()}{most}", first.get(name), second.get(name)))
    first, second = ((one["rubric"] or {}).get("scores", {}) for one in (a, b))
    rows += [
        _numbers(spelt(n).capitalize(), first.get(n), second.get(n)) for n in dict.fromkeys([*first, *second])
    ]
    return rows


def names(a: Document, b: Document) -> list[Names]:
    """Missing tools, flags and failure tags, by the scores that have them."""
    return [
        _names("Missing tools", *([tool["tool_name"] for tool in one["missing_tools"]] for one in (a, b))),
        _names("Flags", *([spelt(flag) for flag in one["flags"]] for one in (a, b))),
        _names("Failure tags", *([spelt(tag) for tag in one["failure_tags"]] for one in (a, b))),
    ]


def effort_rows(a: Document, b: Document) -> list[Row]:
    """Cost, tokens and time of judging."""
    usages = a["usage"], b["usage"]
    return [
        Row("Cost", *(usd(usage.get("cost_usd")) for usage in usages)),
        Row("Tokens in", *(count(usage.get("input_tokens")) for usage in usages)),
        Row("Tokens out", *(count(usage.get("output_tokens")) for usage in usages)),
        _row("Time", a, b, _duration),
    ]


def _row(name: str, a: Document, b: Document, value: Any) -> Row:
    return Row(name, value(a) or "–", value(b) or "–")


def _numbers(name: str, a: float | None, b: float | None) -> Row:
    change = (
        "" if a is None or b is None or a == b else f"{b - a:+.2f}".rstrip("0").rstrip(".").replace("-", "−")
    )
    return Row(name, points(a), points(b), change)


def _names(title: str, a: Sequence[str], b: Sequence[str]) -> Names:
    """Compare names without regard to case. A name that is given twice counts once."""
    first, second = ({name.casefold(): name for name in given} for given in (a, b))
    return Names(
        title,
        [name for key, name in first.items() if key not in second],
        [name for key, name in second.items() if key not in first],
        [name for key, name in first.items() if key in second],
    )


def _short(digest: str | None) -> str:
    return (digest or "")[:12]


def _model(one: Document) -> str:
    turn = next(iter(one["turns"]), None)
    return f"{turn['model_served'] or turn['model_requested']} at {turn['provider']}" if turn else ""


def _duration(one: Document) -> str:
    if one["started_at"] is None or one["completed_at"] is None:
        return ""
    return seconds((one["completed_at"] - one["started_at"]).total_seconds())
