"""
Texts from `words.yaml` for states, phases and flags, and the badge.

An unknown identifier is shown as words, because the lists may grow before these texts do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.errors import SessionNotFound
from tarsy_scoring.scores.bands import DEFAULT_BANDS

Tone = Literal["weak", "fair", "good", "plain"]
"""A colour, by its CSS class. The word or the number beside it says the same."""

# Outcomes that shipped criteria have. Others have no colour.
OUTCOMES: Mapping[str, Tone] = {"correct": "good", "partial": "fair", "wrong": "weak"}
# Bands for totals without an outcome, lowest first.
RANGES: Mapping[str, Tone] = dict(
    zip((band.id for band in DEFAULT_BANDS), ("weak", "fair", "good"), strict=True)
)
_TEXTS: Mapping[str, Mapping[str, str]] = packaged_yaml(__package__, "words.yaml")
PHASES = _TEXTS["phases"]
STATUSES = _TEXTS["statuses"]
WAITING_FOR = _TEXTS["waiting_for"]
FLAGS = _TEXTS["flags"]
ERROR_KINDS = _TEXTS["error_kinds"]
ERROR_HELP = _TEXTS["error_help"]
FAILURE_REASONS = _TEXTS["failure_reasons"]
OPEN = frozenset({"pending", "in_progress"})
ABOUT_SUSPICIOUS_TEXT = frozenset({"injection_suspected", "tampering_suspected"})
GONE = "The source no longer has this session, so it cannot be shown or scored again. Stored scores remain."
LOST = SessionNotFound.error_kind
NOTHING_TO_JUDGE = "nothing_to_judge"  # an `error_kind` that is no failure


@dataclass(frozen=True, slots=True)
class Badge:
    """
    State, outcome or range of a total in words, with a colour.

    Args:
        look: CSS class. `text` says the same in words.
        number: Total, once completed.
        more: Why a pending score waits, in words.
    """

    look: str
    text: str
    number: int | None = None
    more: str = ""
    is_busy: bool = False


def range_of(total: float) -> str:
    """The range that a total without an outcome is shown in, such as `50-74`; 74.9 is not 75."""
    return next(band.id for band in reversed(DEFAULT_BANDS) if total >= band.low)


def tone_of(total: float, outcome: str | None = None) -> Tone:
    """The colour for an outcome, or for the range that a total lies in."""
    return RANGES[range_of(total)] if outcome is None else OUTCOMES.get(outcome, "plain")


def badge(
    status: str | None,
    total: int | None = None,
    phase: str | None = None,
    waiting_for: str | None = None,
    outcome: str | None = None,
    error_kind: str | None = None,
) -> Badge:
    """
    The badge for a score.

    Args:
        status: None: the session has no score.
        phase: `current_stage`, while in progress.
        outcome: `judge_outcome`, once completed.
    """
    if status == "completed" and total is not None:
        tone = tone_of(total, outcome)
        return Badge(tone, range_of(total) if outcome is None else in_words({}, outcome), number=total)
    if status == "in_progress":
        phase = phase or "gathering_context"
        return Badge("busy", in_words(PHASES, phase), is_busy=True)
    if status == "pending":
        return Badge("queued", STATUSES["pending"], more=in_words(WAITING_FOR, waiting_for or ""))
    state = NOTHING_TO_JUDGE if error_kind == NOTHING_TO_JUDGE else status or "not_scored"
    # A completed score without a judge has no total.
    looks = {"not_scored": "none", NOTHING_TO_JUDGE: "plain", "completed": "plain"}
    return Badge(looks.get(state, "ended"), in_words(STATUSES, state))


def badge_of(document: Mapping[str, Any]) -> Badge:
    """The badge for a score document."""
    return badge(
        document["status"],
        document["total_score"],
        document.get("current_stage"),
        document.get("waiting_for"),
        document.get("judge_outcome"),
        document.get("error_kind"),
    )


def in_words(words: Mapping[str, str], word: str) -> str:
    """Text for an identifier; without one, the identifier as words."""
    return words.get(word) or word.replace("_", " ")
