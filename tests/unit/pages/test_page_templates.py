"""Every template renders with all values that a page can show, and with none of them."""

import json
import re
import uuid
from datetime import UTC, date, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.memory.lessons import Lesson, Lessons
from tarsy_scoring.scores.document import NO_USAGE
from tarsy_scoring.scores.reader import REPLY
from tarsy_scoring.scores.session_list import ListedSession, NewestAttempt, SessionPage
from tarsy_scoring.scores.shapes import no_results
from tarsy_scoring.web.pages import score_view, sessions
from tarsy_scoring.web.pages.rendering import Live, page
from tarsy_scoring.web.pages.session import SessionTexts, UnreadableSession
from tarsy_scoring.web.queries import read_form

TODAY, NOW = date(2026, 3, 2), datetime(2026, 3, 2, tzinfo=UTC)
COUNTS = {
    **dict.fromkeys(("total_commands", "unique_commands", "error_count", "retry_count", "help_invocations"), 1),
    **dict.fromkeys(("error_rate", "retry_rate"), 0.3),
    "first_try_success_rate": None,
}
EXAMPLE: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
FULL: dict[str, Any] = EXAMPLE | {
    "score_id": uuid.UUID(int=7),
    **dict.fromkeys(("created_at", "started_at", "completed_at"), NOW),
    "score_breakdown": {"consistency": 10.5, "logical_flow": 20},
    "summary": "The cause is named in E2.",
    "rubric": {
        "scores": {"efficiency": 0.5},
        "weighted_score": 0.5,
        "confidence": 0.7,
        "issues": ["slow"],
        "highlights": ["E2 was right"],
    },
    "samples": [{"total_score": 60}, {"total_score": 66}],
    "flags": ["ungrounded"],
    "interaction": COUNTS
    | {
        "repeated_after_failure": 1,
        "duration_s": 61.5,
        "agent_tokens": {"input": 10, "output": 20},
        "by_tool": {"k.get": COUNTS},
        "by_subcommand": {"get": COUNTS},
    },
    "diagnosis": [{"pattern": "loops", "likely_cause": "no help", "evidence": "calls: 3"}],
    "gates": [{"name": "looked", "gate_type": "tool_called", "passed": False, "message": "0 calls"}],
    "coverage": {"shown_share": 0.5, "cut_entries": ["E2"]},
    "evidence": {"expected": {"stages": 2}, "read": {}, "missing": ["stage 2"]},
    "alternative_approaches": [{"name": "ask", "description": "E2", "steps": ["look"]}],
    "layers": {"interaction": None, "gates": "fail", "judge": "pass"},
    "composite_score": 66.5,
}
UNKNOWN = dict.fromkeys(
    ("criteria", "criteria_hash", "judge_fingerprint", "started_at", "completed_at", "error_message", "summary")
)
PENDING = FULL | no_results() | UNKNOWN | {"status": "pending", "usage": NO_USAGE}
PENDING |= {"waiting_for": "something_new", "waiting_for_text": "<b>why</b>"}
PENDING |= {"missing_tools": [], "alternative_approaches": []}
PENDING |= {"layers": dict.fromkeys(("interaction", "gates", "judge"))}
CONTENT = {
    "name": "investigation-methodology",
    "prompt": "ask\nthis",
    "categories": [{"id": "logical_flow", "max_points": 25}, {"id": "consistency", "max_points": 25}],
    "rubric": [{"id": "efficiency", "weight": 0.3, "description": "d"}],
    "added_by_code": {"fence": "f"},
}
LESSON = Lesson(content="a depends on b", category="semantic", valence="neutral")
LESSONS = Lessons(create=[LESSON], reinforce=[], deprecate=[])
TURN = dict.fromkeys(REPLY) | {
    **dict.fromkeys(("kind", "provider", "model_requested"), "m"),
    **dict.fromkeys(("ordinal", "attempt"), 1),
    "latency_ms": 61_000,
    "refusal": "no",
}


class Text(HTMLParser):
    """The text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words = ""
        self.feed(html)

    def handle_data(self, data: str) -> None:
        self.words += data


def shown(template: str, **values: Any) -> str:
    """The text of the page, in which a missing value never shows as None."""
    words = " ".join(Text(bytes(page(template, here="/", **values).body).decode()).words.split())
    assert "None" not in words
    return words


def score_values(document: dict[str, Any], content: Any, *, is_readable: bool = True) -> dict[str, Any]:
    shown = SessionTexts("failed", None, None, "a pod restarts", "out of memory", is_cut=True, error="agent crashed")
    return {
        "session_id": "session-1",
        "doc": score_view.with_order(document, content),
        "session": shown if is_readable else None,
        "unreadable": None if is_readable else UnreadableSession("away"),
        "timeline": "/sessions/session-1/timeline?" if is_readable else "",
        "info": score_view.session_facts({"labels": {"team": "edge"}}, shown),
        "history": score_view.with_earlier([document, document]),
        "newest": document | {"score_id": uuid.UUID(int=8)},
        "why_no_score": None,
        "turns": [TURN],
        "lessons": LESSONS,
        "max_points": {"logical_flow": 25, "consistency": 25},
        "weights": {"efficiency": 0.3},
        **dict.fromkeys(("is_of_session", "may_score", "has_more"), True),
        "key": "k",
        "meaning_of_total": "Whether it is right.",
        "max_reply_characters": 9,
        "requested_by": document["score_triggered_by"],
        "criteria_names": ["one"],
        "meanings": {"wrong_conclusion": "w"},
        "can_label": False,
        "judged_against": "a bad image",
        "newest_reference": None,
        "max_reference": 9,
        "max_url": 9,
        "live": Live("session:session-1", 1),
    }


def score_page(document: dict[str, Any], content: Any = CONTENT, *, is_readable: bool = True) -> str:
    return shown("score.html", **score_values(document, content, is_readable=is_readable))


@pytest.mark.parametrize("is_readable", [True, False], ids=["with-session", "without-session"])
def test_a_score_page_shows_every_value(is_readable: bool) -> None:
    text = score_page(FULL, CONTENT, is_readable=is_readable)
    for expected in (
        *("67 50-74 of 100", "team: edge", "Logical flow 20 / 25 Consistency 10.5 / 25", "weight 0.3"),
        *("60, 66", "3 of 4 citations", "calls: 3", "1 tool call, 1 failed", "› get", "50 %", "stage 2"),
        *("66.5 / 100", "The judge refused: no", "61.0 s", "confidence 0.7", "Threshold60 of 100, reached"),
        *("Whether it is right.", "The cause is named in E2.", "a depends on b"),
        *("Judged against a reference from alice, 2026-01-05", "its source", "a bad image", "with a reference"),
    ):
        assert expected in text, expected
    assert ("cannot be shown: away" in text) != is_readable
    assert ("The session ended as failed. agent crashed" in text) == is_readable


@pytest.mark.parametrize(
    ("provided_by", "sent_by", "shown"),
    [
        pytest.param("alice", "alice", "alice", id="oneself"),
        pytest.param("ada", "event: ada", "event: ada", id="event"),
        pytest.param(
            "ciso@corp", "event: mallory-pod", "ciso@corp, sent by event: mallory-pod", id="event-for-another"
        ),
        pytest.param("cto@corp", "token pipeline", "cto@corp, sent by token pipeline", id="token-for-another"),
        pytest.param("alice", "event: alice", "event: alice", id="event-with-a-person-s-name"),
    ],
)
def test_a_reference_shows_who_sent_it(provided_by: str, sent_by: str, shown: str) -> None:
    """With the host of the link as it is in the link, so that neither lends a name that is not its own."""
    url = "https://xn--80ak6aa92e.com/login"
    text = score_page(
        FULL | {"reference": FULL["reference"] | {"provided_by": provided_by, "sent_by": sent_by, "source_url": url}}
    )
    assert f"Judged against a reference from {shown}, 2026" in text
    assert "its source (xn--80ak6aa92e.com)" in text


EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\"'><svg/onload=alert(1)> \u202eevil "
    "[x](javascript:alert(1)) {{7*191}}"
)


def evil(value: Any, *, has_names: bool = False) -> Any:
    """The value with hostile text in place of each text, also of names that judges and agents choose."""
    if isinstance(value, dict):
        named = ("score_breakdown", "scores", "by_tool", "by_subcommand")
        return {EVIL if has_names else name: evil(each, has_names=name in named) for name, each in value.items()}
    if isinstance(value, list):
        return [evil(each) for each in value]
    return EVIL if isinstance(value, str) else value


def test_hostile_text_in_every_field_stays_text() -> None:
    """This holds for text of alert, agent, judge, event and requester."""
    reference = FULL["reference"] | {"provided_by": EVIL, "source_url": f"https://tickets.example/{EVIL}"}
    values = score_values(evil(FULL) | {"reference": reference}, CONTENT)
    values |= {"session": SessionTexts(EVIL, EVIL, EVIL, EVIL, EVIL, is_cut=False)}
    values |= {"info": score_view.session_facts({"labels": {EVIL: EVIL}}, values["session"])}
    values |= {"judged_against": EVIL, "newest_reference": reference | {"provided_at": NOW}}
    words = dict.fromkeys(("reply", "provider", "model_served", "finish_reason", "refusal"), EVIL)
    values |= {"turns": [TURN | words], "max_reply_characters": 500}
    html = bytes(page("score.html", here="/", **values).body).decode()
    assert html.count("&lt;script&gt;alert(1)") > 30
    bad = r"<script(?! type=\"module\" src=\"/static/)|<img|<svg[^>]*onload|href=\"javascript|\u202e"
    assert not re.search(bad, html)
    assert "1337" not in html


def test_a_score_page_without_results_says_what_it_waits_for() -> None:
    text = score_page(PENDING, {})
    assert "Waiting: something new" in text
    assert "<b>why</b>." in text
    assert "About this score" in text


def listed(name: str, status: str, score: int | None = None, attempt: str | None = None) -> ListedSession:
    unknown = ("outcome", "judge_outcome", "summary", "criteria", "criteria_hash", "judge_fingerprint", "scored_at")
    found = dict.fromkeys(unknown) | {"gates_passed": 1, "gates_total": 2}
    found |= {
        "score_id": uuid.UUID(int=7),
        "summary": "It found the cause.",
        "total_score": score,
        "outcome": "fail",
        "is_current_criteria": False,
        "flags": ["ungrounded", "new_flag"],
        "failure_tags": ["a_tag"],
        "score_triggered_by": "auto",
    }
    waits = {"attempt": 1, "created_at": NOW, "waiting_for": "budget", "error_kind": "something_new"}
    latest = dict.fromkeys(NewestAttempt.model_fields) | {"score_id": uuid.UUID(int=7), "status": attempt} | waits
    session = dict.fromkeys(ListedSession.model_fields) | {"session_id": name, "labels": {"team": "edge"}}
    session["why_no_score"] = {"failed": "Something new.", "pending": "Scoring is paused."}.get(status)
    of_score = {"score": found if score else None, "latest_attempt": latest if attempt else None}
    return ListedSession.model_validate(session | of_score | {"ended_at": NOW, "status": status})


def list_page(query: bytes, *found: ListedSession, tarsy_url: str | None = None) -> str:
    form = read_form(query, sessions.SessionsQuery, sessions.FIELDS)
    values = sessions.list_values(form, SessionPage(sessions=list(found), next_cursor="next"), form.faults)
    values |= {"chains": [], "criteria_names": [], "tarsy_url": tarsy_url}
    answer = page("sessions.html", here="/", live=None, may_score=True, **values)
    return " ".join(bytes(answer.body).decode().split())


def test_rows_of_the_list_show_the_newest_attempt_and_the_score() -> None:
    """The newest attempt gives the badge, the total stays visible, and each known flag is explained once."""
    new, failed, waiting, done = (
        row.partition("</tr>")[0]
        for row in list_page(
            b"",
            listed("s-1", "not_scored"),
            listed("s-2", "failed", 81, "failed"),
            listed("s-3", "pending", None, "pending"),
            listed("s-4", "completed", 40),
        ).partition("<tbody>")[2].split("<tr>")[1:]
    )  # fmt: skip
    assert "Not scored" in new
    assert ">Score</button>" in new
    assert all(text in failed for text in ("Failed", "before:", "<b>81</b>", ">Re-score</button>", "Something new."))
    assert "Scoring is paused" in waiting
    assert "button" not in waiting
    for text in ("1 gate failed", "a tag", "criteria not current", "new flag", "team: edge", "<b>40</b>", "#means-ung"):
        assert text in done
    assert "It found the cause." in done
    explained = list_page(b"", listed("s-1", "completed", 40), listed("s-2", "completed", 40))
    assert explained.count('<dl class="facts wide-terms"><div id="means-ungrounded"') == 1
    assert "means-new_flag" not in explained


def test_a_list_reflects_its_form() -> None:
    """Folded filters open if one is set, links omit empty fields, and a searched id may be looked up."""
    assert '<details class="rarer" id="rarer">' in list_page(b"q=a&chain=k&min_score=1&sort=newest")
    assert '<details class="rarer" id="rarer" open>' in list_page(b"label=a%3Db")
    assert 'href="/?q=a+b%26c&amp;cursor=next"' in list_page(b"q=a+b%26c&min_score=")
    assert "look up the session session-1 at" in list_page(b"q=session-1")
    for query in (b"q=two+words", b"q=..%2Fx", b"chain=k", b"q=session-1&min_score=x"):
        assert "look up the session" not in list_page(query)
    assert "No sessions yet" in list_page(b"sort=newest")
