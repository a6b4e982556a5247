"""
Texts for the states, phases and flags of a score, and its badge.

An unknown identifier is shown as words, because the lists may grow before these texts do.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GOOD_FROM, FAIR_FROM = 75, 50  # of 100 points; a lower total is weak

PHASES = {
    "queued": "Queued",
    "waiting_retry": "Waiting to retry",
    "gathering_context": "Reading the session",
    "evaluating_gates": "Checking the gates",
    "analyzing_methodology": "Judging",
    "repairing": "Repairing the reply",
    "sampling": "Judging once more",
    "identifying_missing_tools": "Looking for missing tools",
    "storing": "Storing the score",
}
STATUSES = {
    "pending": "Queued",
    "in_progress": "Scoring",
    "completed": "Completed",
    "failed": "Failed",
    "timed_out": "Timed out",
    "cancelled": "Cancelled",
    "not_scored": "Not scored",
}
OPEN = frozenset({"pending", "in_progress"})

WAITING_FOR = {
    "pause": "scoring is paused until an operator resumes it",
    "circuit": "the judge does not answer; the next attempt follows soon",
    "key": "the judge's provider rejects the API key; an operator has to correct it",
    "quota": "the quota at the judge's provider is used up",
    "budget": "today's budget is used up; scoring continues at midnight UTC",
    "rate_limit": "the judge's rate limit is reached",
    "session": "the session was not found or has not ended yet",
    "retry": "the last attempt failed; the next one follows soon",
}
FLAGS = {
    "injection_suspected": "Text in the session tries to steer the judge.",
    "tampering_suspected": (
        "Suspicious text in the session moved the total by 10 points or more. The total shown is the one without it."
    ),
    "breakdown_mismatch": "The parts do not add up to the total.",
    "outcome_score_mismatch": "The total contradicts the outcome that the judge stated. Trends leave it out.",
    "ungrounded": "Most citations of the analysis are not found in the session.",
    "self_judged": "The judge is the same model as one of the judged agents.",
    "missing_tools_unavailable": "The judge gave a score but no usable list of missing tools.",
    "context_shortened": "The session was too long for the judge, so parts of it were shortened.",
    "input_truncated_by_provider": "The judge's provider shortened the prompt.",
    "model_changed": "A model other than the requested one answered some of the turns.",
}
ERROR_KINDS = {
    "session_not_found": "The session does not exist or was deleted.",
    "session_not_terminal": "The session has not ended.",
    "evidence_incomplete": "Too much of the session is missing to judge it.",
    "context_too_long": "The session does not fit into the judge's context window.",
    "no_score_in_answer": "The judge gave no total, even after a reminder.",
    "refused": "The judge refused to answer.",
    "content_filtered": "The judge's provider filtered the reply.",
    "answer_cut": "The judge's reply was cut at its length limit.",
    "empty_answer": "The judge's reply was empty.",
    "invalid_structured_answer": "The judge's reply did not have the required structure.",
    "judge_unavailable": "The judge could not be reached.",
    "judge_rejected_request": "The judge's provider rejected the request.",
    "judge_auth": "The judge's provider rejected the key.",
    "attempt_timed_out": "The last attempt took too long.",
    "deadline_passed": "All attempts together took too long.",
    "worker_lost": "The workers that held the score stopped.",
    "timeline_unavailable": "The session could not be read.",
    "unknown_criteria": "No criteria of that name are configured.",
    "cancelled": "A user cancelled the score.",
    "internal": "An internal error occurred. The service's log has the details.",
}
TURN_KINDS = {
    "analysis": "Analysis",
    "reminder": "Reminder",
    "repair": "Repair",
    "sample": "Another sample",
    "masked": "With suspicious text masked",
    "missing_tools": "Missing tools",
}
PURPOSES = {
    "production": "the session's score",
    "consistency": "a repeat that measures the spread",
    "anchor": "a check of the judge on a known session",
    "shadow": "a comparison of criteria",
}
BANDS = {"good": "good", "fair": "fair", "weak": "weak"}


@dataclass(frozen=True, slots=True)
class Badge:
    """
    A score at a glance.

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


def band_of(total: int) -> str:
    """`good`, `fair` or `weak`."""
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
        return Badge(band, BANDS[band], band, number=total)
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
    """One badge of each state, which `live.js` copies. It replaces the number."""
    phases = [badge("in_progress", phase=p) for p in PHASES if p not in ("queued", "waiting_retry")]
    waiting = Badge("queued", PHASES["waiting_retry"], "waiting_retry")
    ended = [badge(status) for status in ("completed", "failed", "timed_out", "cancelled")]
    bands = [badge("completed", total) for total in (0, FAIR_FROM, GOOD_FROM)]
    return [badge("pending"), waiting, *phases, *bands, *ended]


def in_words(words: Mapping[str, str], word: str) -> str:
    """Text of an identifier; without one, the identifier as words."""
    return words.get(word) or word.replace("_", " ")
