"""
The exception tree. Each branch is one reaction, so a caller catches the branch that it can react to:

    ScoringError
    ├── ConfigurationError      the start is refused, exit status 2
    │   └── SettingMissing
    ├── StartRefused            the start is refused, exit status 1
    ├── InvalidMessage          dead-letter the message, go on
    ├── RetryLater              put the score back with backoff; burns an attempt
    │   ├── TimelineUnavailable (CallerRefused)
    │   ├── EvidenceIncomplete
    │   ├── JudgeUnavailable
    │   └── AttemptTimedOut
    ├── WaitFor                 put the score back with a due time; burns nothing; `waiting_for` says for what
    ├── Unscorable              fail the score at once
    │   ├── SessionNotFound, SessionNotTerminal, SessionTooLarge, NothingToJudge
    │   ├── ContextTooLong (PromptTooLong), UnknownCriteria
    │   └── Refused, ContentFiltered, JudgeRejectedRequest
    └── LeaseLost               the lease was lost: stop quietly

Errors that stay within one room, such as `BrokerAway` of `kafka`, are defined there.

A message names the action, the object, the reason and a remedy. It never contains a prompt, a transcript, an
answer of the judge or a secret, because messages are stored, logged and published.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

WaitingFor = Literal[
    "pause", "circuit", "key", "quota", "rejected", "budget", "rate_limit", "source", "session", "retry"
]


class ScoringError(Exception):
    """Base of all errors that this service raises on purpose."""


class ConfigurationError(ScoringError):
    """A setting, an option or a file is invalid. Exit status 2."""


class SettingMissing(ConfigurationError):
    """A process needs a setting, or a variable that the file names, and it is not set."""


def errors_of(*checks: Callable[[], object]) -> list[ConfigurationError]:
    """
    Make checks of settings that do not depend on each other; returns the error of each that fails, in order.
    """
    errors: list[ConfigurationError] = []
    for check in checks:
        try:
            check()
        except ConfigurationError as error:
            errors.append(error)
    return errors


class StartRefused(ScoringError):
    """The environment is not ready, such as missing migrations or topics. Exit status 1, with the remedy."""


class InvalidMessage(ScoringError):
    """
    A Kafka message that can never be processed: it cannot be decoded, stored or replayed.

    Args:
        reason: From a closed set; the value of the header `scoring-error` of a dead letter.
        message: Explanation without any value from the Kafka message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class AttemptError(ScoringError):
    """An error with which an attempt can end; `error_kind` is stored with the score."""

    error_kind: str

    @property
    def word(self) -> str:
        """What the score waits for, or the kind of its failure."""
        return self.error_kind


class RetryLater(AttemptError):
    """Transient: a later attempt may succeed. Burns an attempt."""

    error_kind = "internal"


class TimelineUnavailable(RetryLater):
    """
    A timeline could not be read; `WatchedSource` finds out whether the source or this session is at fault.
    """

    error_kind = "timeline_unavailable"


class CallerRefused(TimelineUnavailable):
    """The timeline source refuses this service for now, by login or rate; no session is at fault."""


class EvidenceIncomplete(RetryLater):
    """
    Part of the declared evidence could not be read.

    Args:
        missing: The missing parts, for an operator to look up.
        permanent: Whether the source cannot change any more (`files`).
    """

    error_kind = "evidence_incomplete"

    def __init__(self, message: str, missing: list[str], *, permanent: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.permanent = permanent


class JudgeUnavailable(RetryLater):
    """The judge could not be reached, answered 5xx, or broke off the reply."""

    error_kind = "judge_unavailable"


class AttemptTimedOut(RetryLater):
    """The attempt exceeded the time limit; the last attempt ends the score as `timed_out`."""

    error_kind = "attempt_timed_out"


# What waiting means for a score whose time is used up meanwhile; for the others the judge was unavailable.
_KINDS: Mapping[WaitingFor, str] = {
    "key": "judge_auth",
    "rejected": "judge_rejected_request",
    "source": "timeline_unavailable",
}


class WaitFor(AttemptError):
    """
    The score has to wait for something outside of it and loses no attempt.

    `session`: the event arrived before the session, which is not found, not terminal or has no event yet.
    `rate_limit`: the provider asks for a longer wait than a worker should sleep, or our rate is used up.
    `key`, `quota`: an operator must replace the key, pay or raise the quota. `circuit`, `rejected`: after a
    cool-down calls probe the provider, which failed too often in a row, or rejects every request. `budget`: of
    this UTC day. `pause`: by an operator. `source`: it does not answer; the time of such an attempt does not
    count.

    Args:
        due_s: Seconds until the next claim, > 0.
        error_kind: Kind of the end when the wait is over; default: that of `waiting_for`.
    """

    def __init__(
        self, message: str, due_s: float, waiting_for: WaitingFor, error_kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.due_s = due_s
        self.waiting_for = waiting_for
        self.error_kind = error_kind or _KINDS.get(waiting_for, "judge_unavailable")

    @property
    def word(self) -> str:
        return self.waiting_for


class Unscorable(AttemptError):
    """
    Permanent: every attempt would end the same way. `status` is that of the score afterwards.

    Args:
        error_kind: Of an error that is handled like all others, such as `answer_cut` after two cut answers.
    """

    error_kind = "internal"
    status: ClassVar[Literal["failed", "cancelled"]] = "failed"

    def __init__(self, message: str, error_kind: str | None = None) -> None:
        super().__init__(message)
        self.error_kind = error_kind or self.error_kind


class SessionNotFound(Unscorable):
    """No such session, or it was deleted."""

    error_kind = "session_not_found"


class SessionNotTerminal(Unscorable):
    """The session is still running."""

    error_kind = "session_not_terminal"


class SessionTooLarge(Unscorable):
    """
    The session has more bytes than may be read into memory; a source raises it before it reads them.

    Args:
        session_id: The id, or the file name.
        size_bytes: Size at the source, or the part of it that is known.
        limit_bytes: `SCORING_MAX_SESSION_BYTES`.
    """

    error_kind = "session_too_large"

    def __init__(self, session_id: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the session {session_id} is too large to be read: it has at least {size_bytes:,} bytes, and "
            f"SCORING_MAX_SESSION_BYTES allows {limit_bytes:,}; raise that limit together with the memory of "
            "workers and API"
        )


class NothingToJudge(Unscorable):
    """
    The session has no event of an investigation, and the source declares none: no failure, and no score.
    """

    error_kind = "nothing_to_judge"
    status = "cancelled"


class ContextTooLong(Unscorable):
    """The parts that must not be dropped exceed the context window of the judge."""

    error_kind = "context_too_long"


class PromptTooLong(ContextTooLong):
    """
    The prompt exceeds the context window, as reported by the endpoint or as known before the call.

    Args:
        window_tokens: Size of the window, if the endpoint reports it.
        prompt_tokens: Size of the prompt in the model's tokens, if the endpoint reports it.
    """

    def __init__(self, message: str, window_tokens: int | None, prompt_tokens: int | None) -> None:
        super().__init__(message)
        self.window_tokens = window_tokens
        self.prompt_tokens = prompt_tokens


class UnknownCriteria(Unscorable):
    """The score is to be judged under criteria that do not exist."""

    error_kind = "unknown_criteria"


class Refused(Unscorable):
    """The judge refused to answer."""

    error_kind = "refused"


class ContentFiltered(Unscorable):
    """The provider's content filter withheld the answer."""

    error_kind = "content_filtered"


class JudgeRejectedRequest(Unscorable):
    """The endpoint rejects this request (400, 404, 422) and answers others; retrying cannot help."""

    error_kind = "judge_rejected_request"


class LeaseLost(ScoringError):
    """The lease of the score is no longer held by this attempt."""
