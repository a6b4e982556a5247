"""
What states, phases and flags of a score are called on the pages, and the badge that stands for one. Pure.

A word we do not know is shown as it is: the lists behind it may grow before this page knows of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GOOD_FROM, FAIR_FROM = 75, 50  # of 100 points; below the second a score is weak

PHASES = {
    "queued": "Queued",
    "waiting_retry": "Waiting to try again",
    "gathering_context": "Reading the session",
    "evaluating_gates": "Checking the gates",
    "analyzing_methodology": "Judging",
    "repairing": "Having the answer repaired",
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
    "pause": "scoring is paused: somebody has to resume it",
    "circuit": "the judge does not answer: it is tried again in a moment",
    "key": "the judge refuses our key: an operator has to look at it",
    "quota": "the quota at the judge's provider is used up",
    "budget": "today's budget is used up: it goes on at midnight UTC",
    "rate_limit": "as many calls as the judge's rate limit allows are under way",
    "session": "the session could not be found, or has not ended, yet",
    "retry": "the last attempt failed: it is tried again in a moment",
}
FLAGS = {
    "injection_suspected": "Text in the session tries to steer the judge.",
    "tampering_suspected": (
        "Text in the session moved the total by 10 points or more. The total shown is the one with that text masked."
    ),
    "breakdown_mismatch": "The parts do not add up to the total.",
    "outcome_score_mismatch": "The total does not fit the outcome that the judge stated. It stays out of trends.",
    "ungrounded": "Most of what the analysis cites does not stand in the session.",
    "self_judged": "The judge is the same model as one of the judged agents.",
    "missing_tools_unavailable": "The judge gave a score and then no usable list of missing tools.",
    "context_shortened": "The session was too long for the judge: parts of it were shortened.",
    "input_truncated_by_provider": "The judge's provider cut what it was sent.",
    "model_changed": "Another model than the one asked for answered some of the turns.",
}
ERROR_KINDS = {
    "session_not_found": "There is no such session, or it was deleted.",
    "session_not_terminal": "The session has not ended.",
    "evidence_incomplete": "Too much of the session could not be read to judge it.",
    "context_too_long": "The session does not fit into the judge's window.",
    "no_score_in_answer": "The judge gave no total, also when it was reminded.",
    "refused": "The judge refused to answer.",
    "content_filtered": "The judge's provider filtered the answer.",
    "answer_cut": "The judge's answer was cut at its limit.",
    "empty_answer": "The judge's answer was empty.",
    "invalid_structured_answer": "The judge's answer was not in the form that was asked for.",
    "judge_unavailable": "The judge could not be reached.",
    "judge_rejected_request": "The judge's provider rejected the request.",
    "judge_auth": "The judge's provider rejected the key.",
    "attempt_timed_out": "The last attempt took too long.",
    "deadline_passed": "All attempts together took too long.",
    "worker_lost": "The workers that held it stopped answering.",
    "timeline_unavailable": "The session could not be read.",
    "unknown_criteria": "There are no criteria of that name.",
    "cancelled": "Somebody cancelled it.",
    "internal": "It failed for a reason that is in our log.",
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
    "consistency": "a repeat, to see the spread",
    "anchor": "a check of the judge on a known session",
    "shadow": "a comparison of criteria",
}
BANDS = {"good": "good", "fair": "fair", "weak": "weak"}


@dataclass(frozen=True, slots=True)
class Badge:
    """
    A score at a glance.

    Args:
        look: CSS class and nothing else; `text` says the same to those who do not see it.
        number: Total of a completed score.
        more: What a pending one waits for, in words.
        state: As `live.js` knows it: a phase, a status, or a band.
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
        phase: `current_stage` of one that is in progress.
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
    # A completed score without a judge has no number.
    look = "plain" if status == "completed" else "ended"
    return Badge(look, in_words(STATUSES, status), status)


def badge_of(document: Mapping[str, Any]) -> Badge:
    """The badge of a score document."""
    return badge(
        document["status"], document["total_score"], document.get("current_stage"), document.get("waiting_for")
    )


def every_badge() -> list[Badge]:
    """One of each state, for `live.js` to copy; where there is a number it is replaced."""
    phases = [badge("in_progress", phase=p) for p in PHASES if p not in ("queued", "waiting_retry")]
    waiting = Badge("queued", PHASES["waiting_retry"], "waiting_retry")
    ended = [badge(status) for status in ("completed", "failed", "timed_out", "cancelled")]
    bands = [badge("completed", total) for total in (0, FAIR_FROM, GOOD_FROM)]
    return [badge("pending"), waiting, *phases, *bands, *ended]


def in_words(words: Mapping[str, str], word: str) -> str:
    """What a word means; one that nobody has described is spelt out."""
    return words.get(word) or word.replace("_", " ")
