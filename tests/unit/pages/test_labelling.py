"""Labels, trust cards and the review list on pages."""

import re
import uuid
from datetime import UTC, datetime
from typing import get_args

from tarsy_scoring.labels.calibration import Label, LabelledScore, TrustCard, calibrate
from tarsy_scoring.labels.review import Reason
from tarsy_scoring.scores.bands import bands_of
from tarsy_scoring.web.pages import rendering
from tarsy_scoring.web.pages.labelling import next_to_label
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
    assert "band on 30 of 40 labelled scores (95 % interval 60 % to 86 %)." in text
    assert "left out" not in text


PICK = {"session_id": "s", "alert_type": "<b>disk</b>", "chain_id": None, "criteria": None, "scored_at": NOW}


def test_a_queue_says_why_each_score_is_in_it() -> None:
    """A reason, a random draw or both; text from sessions is escaped. One without a label opens for review."""
    places = (("one", False, list(REASONS), 0), ("two", True, [], 2), ("three", True, ["flag"], 0))
    picks = [PICK | dict(zip(("score_id", "is_random", "reasons", "labels"), place, strict=True)) for place in places]
    about = {"days": 7, "cards": [card(40), *[card(4)] * 4], "doc": None, "labelled": None}
    text = shown("review.html", found={"picks": picks, "to_label": 2}, **about)
    whys = re.findall(r'<td data-name="Why">(.*?)</td>', text)
    assert whys == [", ".join(REASONS.values()), "random", f"random, {REASONS['flag']}"]
    rows = re.findall(r'<th scope="row" class="name"><a href="(/[rs].*?)"', text)
    assert rows == ["/review", "/scores/two#labels", "/review?after=two"]
    assert text.count("none yet") == 2
    assert "1 of 3 labelled" in text
    assert "<b>disk" not in text
    assert text.count("Agreement of this judge with reviewers") == 4
    assert "The cards of all judges with labels" in text


def test_the_next_score_is_the_first_without_a_label_behind_the_last() -> None:
    """After the end of the list come those that were skipped."""
    ids = [uuid.UUID(int=n) for n in range(4)]
    picks = [{"score_id": one, "labels": labels} for one, labels in zip(ids, (0, 1, 0, 2), strict=True)]
    for after, wanted in ((None, 0), (0, 2), (1, 2), (2, 0), (3, 0)):
        assert next_to_label(picks, None if after is None else ids[after]) == ids[wanted]
    assert next_to_label(picks, uuid.UUID(int=9)) == ids[0]
    assert next_to_label(picks[1:2], None) is None


def test_labels_show_their_author_and_content() -> None:
    """Agreement, own outcome and number, escaped reason; the form has every band."""
    one = {"by": "alice", "source": "page", "at": NOW, "agrees": True, "outcome": None, "number": None, "reason": None}
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
