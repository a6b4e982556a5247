"""Labels, trust cards and the review list on pages."""

import re
from datetime import UTC, datetime
from typing import get_args

from tarsy_scoring.labels.calibration import Label, LabelledScore, TrustCard, calibrate
from tarsy_scoring.labels.review import Reason
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.web.pages import rendering
from tarsy_scoring.web.pages.rendering import page

REASONS = {reason: reason for reason in get_args(Reason)}
BANDS = bands_of({"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)})
NOW = datetime(2026, 3, 2, tzinfo=UTC)


def card(labels: int) -> TrustCard:
    """A trust card of a judge that is right on three of four labels."""
    said = [("wrong", 20.0), ("correct", 80.0), ("partial", 50.0), ("partial", 70.0)]
    given = [(Label(f"s-{n}", said[n % 4][0]), said[n % 4][1]) for n in range(labels)]
    scores = [LabelledScore(one.session_id, total, "methodology", "hash-1", "judge-1") for one, total in given]
    [found] = calibrate(
        [one for one, _ in given], scores or [LabelledScore("s", 1, "m", "hash-1", "j")], {"hash-1": BANDS}
    )
    return found


def shown(template: str, **values: object) -> str:
    return bytes(page(template, here="/review", **values).body).decode()


def alone(**values: object) -> str:
    """The labels of a score without the page around them."""
    source = '{% import "parts.html" as parts %}{% include "labels.html" %}'
    return rendering.templates().from_string(source).render(values)


def test_a_card_shows_its_figures_and_the_table() -> None:
    """Kappa with its interval, the number of missing labels, and a row per band."""
    found = card(40)
    text = shown("trust_card.html", card=found)
    assert found.kappa.value is not None
    assert found.kappa.low is not None
    assert f"{found.kappa.value:.2f} <span" in text
    assert f"({found.kappa.low:.2f} to" in text
    assert f"<dd>{found.still_needed}</dd>" in text
    assert text.count("<tr>") == 1 + len(BANDS)
    assert "agree with the judge's band on 30 of 40 labelled scores." in text.replace("&#39;", "'")
    assert "left out" not in text


def test_a_queue_says_why_each_score_is_in_it() -> None:
    """A reason, a random draw or both; text from sessions is escaped."""
    pick = {"score_id": "id", "session_id": "s", "alert_type": "<b>disk</b>", "chain_id": None, "total_score": 50}
    pick |= {"judge_outcome": None, "criteria": None, "scored_at": NOW, "labels": 0}
    picks = [
        pick | {"is_random": False, "reasons": list(REASONS)},
        pick | {"is_random": True, "reasons": [], "labels": 2},
        pick | {"is_random": True, "reasons": ["flag"], "labels": 2},
    ]
    about = {"days": 7, "cards": [card(40), card(4)], "more_cards": True}
    text = shown("review.html", found={"picks": picks, "to_label": 1}, **about)
    assert all(words in text for words in REASONS.values())
    whys = re.findall(r'<td data-name="Why">(.*?)</td>', text)
    assert whys == [", ".join(REASONS.values()), "random", f"random, {REASONS['flag']}"]
    assert text.count("none yet") == 1
    assert "<b>disk" not in text
    assert text.count("Agreement of this judge with reviewers") == 2
    assert "The cards of all judges with labels" in text


def test_labels_show_their_author_and_content() -> None:
    """Agreement, own outcome and number, escaped reason; the form has every band."""
    one = {"by": "alice", "at": NOW, "agrees": True, "outcome": None, "number": None, "reason": None}
    own = one | {"by": "bob", "agrees": False, "outcome": "wrong", "number": 12.5, "reason": "<i>no</i>"}
    given = [one, own]
    about = {"labels": given, "has_more_labels": False, "outcomes": ["correct", "wrong"], "doc": {"score_id": "id"}}
    text = alone(may_score=True, **about)
    assert "agrees</span>" in text
    assert "right: wrong" in text
    assert "right: 12.5 points" in text
    assert "right: 1 point<" in alone(may_score=False, **about | {"labels": [given[0] | {"number": 1.0}]})
    assert "&lt;i&gt;no" in text
    assert text.count("<option") == 4
    assert "<form" not in alone(may_score=False, **about)
