"""
Texts for the states, phases and flags of a score, from `words.yaml`, and its badge.

An unknown identifier is shown as words, because the lists may grow before these texts do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.config.packaged import packaged_yaml

GOOD_FROM, FAIR_FROM = 75, 50  # of 100 points; a lower total is weak

_TEXTS: Mapping[str, Mapping[str, str]] = packaged_yaml(__package__, "words.yaml")
PHASES = _TEXTS["phases"]
STATUSES = _TEXTS["statuses"]
WAITING_FOR = _TEXTS["waiting_for"]
FLAGS = _TEXTS["flags"]
ERROR_KINDS = _TEXTS["error_kinds"]
FAILURE_REASONS = _TEXTS["failure_reasons"]
NO_SECOND_OPINION = {**ERROR_KINDS, **_TEXTS["no_second_opinion"]}
TURN_KINDS = _TEXTS["turn_kinds"]
PURPOSES = _TEXTS["purposes"]
REVIEW_REASONS = _TEXTS["review_reasons"]
OPEN = frozenset({"pending", "in_progress"})


@dataclass(frozen=True, slots=True)
class Badge:
    """
    The badge of a score: its state or band in a word, with a colour.

    Args:
        look: CSS class. `text` says the same in words.
        number: Total of a completed score.
        more: Why a pending score waits, in words.
        state: Key of the badge in `live.js`: a phase, a status or a band.
    """

    look: str
    text: str
    state: str
    number: int | None = None
    more: str = ""
    is_busy: bool = False


def band_of(total: float) -> Literal["good", "fair", "weak"]:
    """The band of a total on the badges, whatever the bands of its criteria."""
    return "good" if total >= GOOD_FROM else "fair" if total >= FAIR_FROM else "weak"


def badge(
    status: str | None, total: int | None = None, phase: str | None = None, waiting_for: str | None = None
) -> Badge:
    """
    The badge of a score.

    Args:
        status: None: the session has no score.
        phase: `current_stage` of a score in progress.
    """
    if status == "completed" and total is not None:
        band = band_of(total)
        return Badge(band, band, band, number=total)
    if status == "in_progress":
        phase = phase or "gathering_context"
        return Badge("busy", in_words(PHASES, phase), phase, is_busy=True)
    if status == "pending":
        return Badge("queued", STATUSES["pending"], "queued", more=in_words(WAITING_FOR, waiting_for or ""))
    if status is None or status == "not_scored":
        return Badge("none", STATUSES["not_scored"], "not_scored")
    # A completed score without a judge has no total.
    look = "plain" if status == "completed" else "ended"
    return Badge(look, in_words(STATUSES, status), status)


def badge_of(document: Mapping[str, Any]) -> Badge:
    """The badge of a score document."""
    return badge(
        document["status"], document["total_score"], document.get("current_stage"), document.get("waiting_for")
    )


def every_badge() -> list[Badge]:
    """One badge of each state, for `live.js` to copy; the script writes the total of the score into it."""
    phases = [badge("in_progress", phase=p) for p in PHASES if p not in ("queued", "waiting_retry")]
    waiting = Badge("queued", PHASES["waiting_retry"], "waiting_retry")
    ended = [badge(status) for status in ("completed", "failed", "timed_out", "cancelled")]
    bands = [badge("completed", total) for total in (0, FAIR_FROM, GOOD_FROM)]
    return [badge("pending"), waiting, *phases, *bands, *ended]


def in_words(words: Mapping[str, str], word: str) -> str:
    """Text of an identifier; without one, the identifier as words."""
    return words.get(word) or word.replace("_", " ")
