"""The law of odd data, at random: whatever stands in a column, every page that shows it can be shown."""

import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attempting import a_timeline
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.missing_tools.decisions import Merge, Saying
from tarsy_scoring.missing_tools.ledger import Ledger, LedgerEntry
from tarsy_scoring.missing_tools.report import demand_in_words
from tarsy_scoring.missing_tools.tool_effect import ChainDemand, measure_demand
from tarsy_scoring.records.analytics import (
    BandCount,
    CategoryAverage,
    ChainShare,
    Distribution,
    FailureTags,
    Spelling,
    TagCount,
    ToolChain,
    TrendPoint,
)
from tarsy_scoring.records.scores import REPLY, TURN
from tarsy_scoring.records.session_list import ListedScore, ListedSession, NewestAttempt
from tarsy_scoring.web.documents import EXAMPLE_SCORE
from tarsy_scoring.web.pages import criteria_view, insights_view, score_view, sessions_view
from tarsy_scoring.web.pages.insights_view import SORT
from tarsy_scoring.web.pages.ledger import STATES
from tarsy_scoring.web.pages.rendering import Live, page
from tarsy_scoring.web.pages.score_view import in_order, sound
from tarsy_scoring.web.pages.session import Unreadable, show
from tarsy_scoring.web.pages.stored import MAX_CHARACTERS, MOST, Stored, number, text

NOW = datetime(2026, 3, 2, tzinfo=UTC)
ID = uuid.UUID(int=7)
COUNTS = {
    "total_commands": 3, "unique_commands": 2, "error_count": 1, "error_rate": 0.3, "retry_count": 1,
    "retry_rate": 0.1, "help_invocations": 0, "first_try_success_rate": None,
}  # fmt: skip
# One of each piece that a column can hold, as this version writes it.
WHOLE: dict[str, Any] = {
    "score_breakdown": {"logical_flow": 20, "consistency": 10.5},
    "rubric": {
        "scores": {"efficiency": 0.5},
        "weighted_score": 0.5,
        "confidence": 0.7,
        "issues": ["slow"],
        "highlights": ["E2 was right"],
    },
    "samples": [{"total_score": 60}, {"total_score": 66}],
    "failure_tags": ["wrong_conclusion"],
    "flags": ["ungrounded"],
    "grounding": {"checked": 4, "held": 3, "share": 0.75},
    "interaction": COUNTS | {
        "repeated_after_failure": 1,
        "longest_identical_run": {"tool": "k.get", "length": 3},
        "duration_s": 61.5,
        "agent_tokens": {"input": 10, "output": 20},
        "by_tool": {"k.get": COUNTS},
        "by_subcommand": {"get": COUNTS},
    },
    "diagnosis": [{"pattern": "loops", "likely_cause": "no help", "evidence": {"calls": 3}}],
    "gates": [{"name": "looked", "gate_type": "tool_called", "passed": False, "message": "0 calls"}],
    "coverage": {"shown_share": 0.5, "cut_entries": ["E2"]},
    "evidence": {"expected": {"stages": 2}, "read": {}, "missing": ["stage 2"]},
    "usage": {"input_tokens": 1, "cached_input_tokens": None, "output_tokens": 2, "cost_usd": 0.1},
}  # fmt: skip
CONTENT = {
    "name": "investigation-methodology",
    "prompt": "ask\nthis",
    "categories": [{"id": "logical_flow", "max_points": 25}],
    "rubric": [{"id": "efficiency", "weight": 0.3, "description": "d"}],
    "added_by_code": {"fence": "f"},
}

# What is missing must never read as the word for it in Python, so no odd text begins like that.
texts = st.text(st.characters(exclude_characters="\0N", exclude_categories=["Cs"]), max_size=12)
numbers = st.integers() | st.floats() | st.sampled_from([0, -1, 10**18, 1e308])
odd = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def spoilt(value: Any) -> st.SearchStrategy[Any]:
    """A value as it is, something else altogether, or with pieces that are missing or spoilt themselves."""
    kinds = [st.just(value), odd]
    if isinstance(value, dict):
        kinds.append(st.fixed_dictionaries({}, optional={name: spoilt(one) for name, one in value.items()}))
    if isinstance(value, list) and value:
        kinds.append(st.lists(st.one_of([spoilt(one) for one in value]), max_size=3))
    return st.one_of(kinds)


def nullable(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


DOCUMENTS = st.fixed_dictionaries(
    {
        **{name: spoilt(value) for name, value in WHOLE.items()},
        "score_id": st.just(ID),
        "status": st.sampled_from(["pending", "in_progress", "completed", "failed", "timed_out", "cancelled"]),
        "purpose": st.sampled_from(["production", "shadow"]),
        "created_at": st.just(NOW),
        "started_at": nullable(NOW),
        "completed_at": nullable(NOW),
        "total_score": nullable(0, 100),
        "score_analysis": st.none() | st.sampled_from(["It says E2.", "", "# x\n" * 500]) | texts,
        "missing_tools_analysis": st.none() | texts,
        "missing_tools": st.lists(st.fixed_dictionaries({"tool_name": texts, "rationale": texts}), max_size=2),
        "alternative_approaches": st.lists(
            st.fixed_dictionaries({"name": texts, "description": texts, "steps": st.lists(texts, max_size=2)}),
            max_size=2,
        ),
        "outcome": nullable("pass", "fail"),
        **dict.fromkeys(("outcome_reason", "judge_outcome", "criteria", "judge_fingerprint"), st.none() | texts),
        "criteria_hash": nullable("a" * 64),
        **dict.fromkeys(("error_kind", "error_message"), st.none() | texts),
        **dict.fromkeys(("gates_passed", "gates_total", "spread"), nullable(0, 3)),
        "composite_score": nullable(0.0, 66.5, float("nan")),
        "waiting_for": nullable("budget", "something_new"),
    }
).map(lambda columns: EXAMPLE_SCORE | {"session_id": "session-1"} | columns)
LABELS = spoilt({"team": "edge", "guidance": "v1"})
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(REPLY, st.none()),
            "ordinal": st.integers(1, 9),
            **dict.fromkeys(("kind", "provider", "model_requested", "reply"), texts),
            **dict.fromkeys(("refusal", "model_served", "finish_reason"), st.none() | texts),
            **dict.fromkeys((name for name in TURN if "tokens" in name), nullable(0, 5)),
            "cost_usd": nullable(0.0, 1.5),
            "latency_ms": st.integers(0, 10**9),
            "attempt": st.just(1),
        }
    ),
    max_size=2,
    unique_by=lambda turn: turn["ordinal"],
)


class Reading(HTMLParser):
    """The text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words = ""
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.words += data


DEMAND = measure_demand([ChainDemand(100, 30, 10, 0)])


def shown(template: str, **values: Any) -> str:
    """The text of the page; every value of it has been rendered."""
    answer = page(template, here="/", **values)
    assert answer.status_code == 200
    words = Reading(bytes(answer.body).decode()).words
    assert "None" not in words, "what is missing is told in words, or not at all"
    return words


@settings(max_examples=80)
@given(DOCUMENTS, LABELS, TURNS, spoilt(CONTENT), st.booleans())
@example(EXAMPLE_SCORE | WHOLE | {"score_id": ID, "created_at": NOW, "started_at": NOW, "completed_at": NOW},
         {}, [], CONTENT, True)  # fmt: skip
def test_the_page_of_a_score_can_always_be_shown(
    document: dict[str, Any], labels: Any, turns: Any, content: Any, is_readable: bool
) -> None:
    """Whatever its columns, its session's labels and the criteria hold; what stands beside it is shown too."""
    doc = sound(document)
    timeline = replace(a_timeline(), chain_id=None, alert_type=None)
    session = show(timeline, score_view.cited(doc), doc["coverage"]["cut_entries"]) if is_readable else Unreadable("x")
    values = score_view.values(
        "session-1",
        doc,
        session,
        row={"alert_type": None, "chain_id": None, "labels": labels},
        history=[document, document],
        newest=document | {"score_id": uuid.UUID(int=8)},
        turns=turns,
        criteria_content=content,
    )
    words = shown(
        "score.html", live=Live("session:session-1", 1), is_of_session=True, may_ask=True, has_more=True,
        current_hash="c", criteria_names=["one"], meanings={"wrong_conclusion": "it is wrong"}, key="k",
        can_label=False, card=None, **values,
    )  # fmt: skip
    assert "About this score" in words


@settings(max_examples=80)
@given(LABELS, spoilt(["ungrounded"]), spoilt(["wrong_conclusion"]), nullable(0, 100), nullable("pass", "fail"))
def test_the_list_can_always_be_shown(labels: Any, flags: Any, tags: Any, total: Any, outcome: Any) -> None:
    """Sessions whose labels, flags and failure tags are of any shape, beside ones without anything."""
    score = ListedScore(ID, total, outcome, None, None, None, False, None, flags, tags, "auto", None)
    newest = NewestAttempt(ID, "timed_out", 1, NOW, None, "something_new", "something_new", None)
    sessions = [
        ListedSession("s-1", None, None, labels, None, NOW, "completed", score, newest),
        ListedSession("s-2", None, None, labels, None, NOW, "not_scored", None, None),
    ]
    rows = [sessions_view.row(session) for session in sessions]
    words = shown(
        "sessions.html", live=None, asked=sessions_view.asked({}), faults=[], may_ask=True, rows=rows,
        explained=sessions_view.explained(rows), next_query="x=y", is_continued=True, sorts=sessions_view.SORTS,
        outcomes=sessions_view.OUTCOMES, chains=[], criteria_names=[],
    )  # fmt: skip
    assert "s-1" in words
    assert "s-2" in words


@settings(max_examples=100)
@given(spoilt(CONTENT), spoilt(CONTENT), nullable(NOW))
def test_the_page_of_criteria_can_always_be_shown(before: Any, after: Any, first_used_at: Any) -> None:
    """Whatever is stored under their hashes."""
    shown(
        "criteria.html", name="c", criteria_hash="h", first_used_at=first_used_at, is_current=False,
        before={"name": "c", "criteria_hash": "g"}, changes=criteria_view.changes(before, after),
        content=criteria_view.in_sections(after),
    )  # fmt: skip


@settings(max_examples=60)
@given(st.none() | texts, st.none() | texts, st.none() | texts, st.floats(-1e9, 1e9), st.integers(0, 10**9))
def test_the_pages_across_sessions_can_always_be_shown(
    chain: str | None, criteria: str | None, fingerprint: str | None, average: float, count: int
) -> None:
    """Chains, criteria and judges that nobody named, averages that no criteria could give, none of something."""
    today = date(2026, 3, 2)
    asked = insights_view.asked({}, today)
    form = {"asked": asked, "choice": None, "chains": [], "criteria_names": []}
    category = CategoryAverage(criteria, "logical_flow", average, count)
    bands = [BandCount("low", 0, 49, 0, []), BandCount("high", 50, 100, count, [category])]
    found: Any = Distribution(bands, 1, 1, [category])
    view: Any = insights_view.distribution_view(found, load_criteria(), asked, "t", is_default=False)
    shown("distribution.html", **form, view=view, found=found)
    points = [TrendPoint(today, fingerprint, criteria, 50.0, 0, 100, max(count, 1))]
    shown("trends.html", **form, view=insights_view.trend_view(points, "t"), left_out=1)
    counts: Any = "a_tool", [Spelling("a_tool", 1)], count, 1, [ToolChain(chain, count)], 0, True
    merge = Merge("another", "a_tool", is_automatic=True, decided_by="automatic", decided_at=None)
    said = Saying("a_tool", "built", NOW, criteria or "ada", NOW, chain)
    tools = [
        LedgerEntry(*counts, state="open", said=None, demand=None, has_other_judge=False, merges=[]),
        LedgerEntry(*counts, state="built", said=said, demand=DEMAND, has_other_judge=True, merges=[merge]),
    ]
    sort: Any = insights_view.asked({}, today, SORT)
    for may_say in (True, False):
        shown(
            "missing_tools.html", **form | {"asked": sort, "choice": SORT}, found=Ledger(NOW, tools, 1, 1),
            states=STATES, in_words=demand_in_words, may_say=may_say,
        )  # fmt: skip
    tag = TagCount("a_tag", count, 1.0, 1, [ChainShare(chain, count, 1.0)])
    shown("failure_tags.html", **form, found=FailureTags(count, [tag]), meanings={"a_tag": "m"})


# --- the pieces ----------------------------------------------------------------------------------------


def test_what_fits_is_kept_and_the_rest_is_left_out() -> None:
    """Piece by piece: one odd value hides none of those beside it."""
    found = sound(EXAMPLE_SCORE | {
        "score_breakdown": {"good": 1, "nothing": None, "words": "12", "truth": True},
        "rubric": {"scores": {"good": 0.5, "nothing": None}, "issues": None, "confidence": "high"},
        "gates": [{"name": "no message"}, "no gate", None],
        "flags": None,
        "evidence": [1],
    })  # fmt: skip
    assert found["score_breakdown"] == {"good": 1}
    assert found["rubric"] == {
        "scores": {"good": 0.5}, "weighted_score": None, "confidence": "high", "issues": [], "highlights": [],
    }  # fmt: skip
    assert found["gates"] == [{"name": "no message", "gate_type": "", "message": "", "passed": False}]
    assert (found["flags"], found["evidence"], found["is_cut"]) == ([], {"missing": []}, False)


def test_a_huge_list_is_cut_and_said_to_be() -> None:
    found = sound(EXAMPLE_SCORE | {"gates": [{"name": str(n)} for n in range(MOST + 1)]})
    assert len(found["gates"]) == MOST
    assert found["is_cut"]
    assert not sound(EXAMPLE_SCORE | {"gates": [{"name": str(n)} for n in range(MOST)]})["is_cut"]
    assert len(Stored().labels(dict.fromkeys(map(str, range(10_000)), "x"))) == MOST


def test_a_huge_text_in_a_list_is_cut() -> None:
    assert text("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS
    assert text("x" * 10**6) == "x" * MAX_CHARACTERS + "…"


@pytest.mark.parametrize(
    ("value", "counted"),
    [(1, 1), (0.5, 0.5), (True, None), ("1", None), (float("nan"), None), (10**400, None), (-(10**400), None)],
    ids=["whole", "share", "truth", "words", "no number", "beyond counting", "far below"],
)
def test_a_number_is_one_that_can_be_counted_with(value: Any, counted: Any) -> None:
    assert number(value) == counted


def test_categories_stand_in_the_order_of_their_criteria() -> None:
    """The database gives names in an order of its own; what the criteria do not know comes last."""
    assert list(in_order({"b": 1, "new": 2, "a": 3}, ["a", "gone", "b"])) == ["a", "b", "new"]
