"""
Texts for states, phases and flags, and the badge.

An unknown identifier is shown as words, because the lists may grow before these texts do.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tarsy_scoring.config.packaged import packaged_yaml
from tarsy_scoring.errors import SessionNotFound
from tarsy_scoring.references.model import REVIEWED_BY
from tarsy_scoring.scores import why_no_score
from tarsy_scoring.scores.bands import Band, show_band
from tarsy_scoring.scores.why_no_score import in_words

_TEXTS: Mapping[str, Mapping[str, str]] = packaged_yaml(__package__, "words.yaml")
PHASES = _TEXTS["phases"]
STATUSES = _TEXTS["statuses"]
FLAGS = _TEXTS["flags"]
WAITING_FOR, ERROR_KINDS = why_no_score.WAITING_FOR, why_no_score.ERROR_KINDS
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
    State, or outcome or band of a total and what failed, in words and with a colour.

    Args:
        look: CSS class. `text` says the same in words.
        number: Total, once completed.
    """

    look: str
    text: str
    number: int | None = None
    is_busy: bool = False


def from_whom(reference: Mapping[str, Any]) -> str:
    """Who gave a reference: the sender, in front of whom stands another person that the sender names."""
    name, sender = reference["provided_by"], reference.get("sent_by") or reference["provided_by"]
    return (
        sender
        if sender in (name, f"event: {name}", f"token {name}", f"{REVIEWED_BY}{name}")
        else f"{name}, sent by {sender}"
    )


def host_of(address: str) -> str:
    """The host of a link, in ASCII as in the link itself; a masked one cannot be read."""
    with suppress(ValueError):
        return urlsplit(address).netloc
    return "unknown host"


def badge_of(bands: Callable[[str | None], Sequence[Band]], document: Mapping[str, Any]) -> Badge:
    """
    The badge for a score document, or for a part of one; its status is None where a session has no score.

    Args:
        bands: Those of criteria, by name.
    """
    total, outcome = document.get("total_score"), document.get("outcome")
    if document["status"] != "completed" or (total is None and outcome is None):
        return state_of(document)
    word, tone = ("did not pass", "weak") if outcome == "fail" else ("passed", "good")
    if total is not None:
        word, tone = show_band(total, bands(document.get("criteria")), document.get("judge_outcome"))
    if outcome == "fail":
        word += _what_failed(document, tone)
        tone = "weak" if tone == "weak" else "fair"
    return Badge(tone, word, number=total)


def _what_failed(document: Mapping[str, Any], tone: str) -> str:
    """What stands behind the band; the lowest one says by itself that a score did not pass."""
    if gates_failed := (document.get("gates_total") or 0) - (document.get("gates_passed") or 0):
        return f", {gates_failed} gate{'' if gates_failed == 1 else 's'} failed"
    return "" if tone == "weak" else ", did not pass"


def state_of(document: Mapping[str, Any]) -> Badge:
    """The badge for a score without a result."""
    status = document["status"]
    if status == "in_progress":
        phase = document.get("current_stage") or "gathering_context"
        return Badge("busy", in_words(PHASES, phase), is_busy=True)
    if status == "pending":
        return Badge("queued", STATUSES["pending"])
    is_judged = document.get("error_kind") != NOTHING_TO_JUDGE
    state = (status or "not_scored") if is_judged else NOTHING_TO_JUDGE
    looks = {"not_scored": "none", NOTHING_TO_JUDGE: "plain", "completed": "plain"}
    return Badge(looks.get(state, "ended"), in_words(STATUSES, state))
