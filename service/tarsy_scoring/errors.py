"""
The exception tree. Each branch is a reaction, so a caller catches what it means to do:

    ScoringError
    ├── ConfigurationError      the start is refused, exit status 2
    ├── StartRefused            the start is refused, exit status 1
    ├── InvalidMessage          dead-letter the message, go on
    ├── RetryLater              put the score back with backoff; burns an attempt
    │   ├── TimelineUnavailable
    │   ├── EvidenceIncomplete
    │   ├── JudgeUnavailable
    │   └── AttemptTimedOut
    ├── WaitFor                 put the score back with a due time; burns nothing
    │   ├── SessionNotReady
    │   ├── RateLimited
    │   ├── KeyRejected
    │   ├── QuotaExhausted
    │   ├── CircuitOpen
    │   ├── BudgetExhausted
    │   └── Paused
    ├── Unscorable              fail the score at once
    │   ├── SessionNotFound, SessionNotTerminal, ContextTooLong (PromptTooLong), UnknownCriteria
    │   ├── NoScoreInAnswer, InvalidStructuredAnswer, AnswerCut, EmptyAnswer
    │   └── Refused, ContentFiltered, JudgeRejectedRequest
    └── LeaseLost               another worker holds the score: stop quietly

A message says what was attempted, on what, why it failed and what would help. It never carries a
prompt, a transcript, an answer of the judge or a secret: messages are stored, logged and published.
"""

from typing import ClassVar, Literal

WaitingFor = Literal["pause", "circuit", "key", "quota", "budget", "rate_limit", "session", "retry"]


class ScoringError(Exception):
    """Everything this service raises on purpose."""


class ConfigurationError(ScoringError):
    """It was asked wrongly: a setting, a flag or a file that cannot be meant. Exit status 2."""


class StartRefused(ScoringError):
    """The surroundings are not ready: no migrations, no topics. Exit status 1, with what to run."""


class InvalidMessage(ScoringError):
    """
    A message that cannot be understood, now or later.

    Args:
        reason: One word for the header `scoring-error`, from a closed set.
        message: A sentence for people; holds no value from the message.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _OfScore(ScoringError):
    """An error with which an attempt can end; `error_kind` is the word of the interface."""

    error_kind: ClassVar[str]


class RetryLater(_OfScore):
    """Transient: the same attempt may succeed later. Burns an attempt."""

    error_kind = "internal"


class TimelineUnavailable(RetryLater):
    """The timeline source could not be read."""

    error_kind = "timeline_unavailable"


class EvidenceIncomplete(RetryLater):
    """
    Less could be read than the source declares; an empty timeline is never judged.

    Args:
        missing: What is missing, in words an operator can look up.
        permanent: True where the source cannot change any more (`files`).
    """

    error_kind = "evidence_incomplete"

    def __init__(self, message: str, missing: list[str], *, permanent: bool = False) -> None:
        super().__init__(message)
        self.missing = missing
        self.permanent = permanent


class JudgeUnavailable(RetryLater):
    """The judge could not be reached, answered 5xx, or broke off in the middle."""

    error_kind = "judge_unavailable"


class AttemptTimedOut(RetryLater):
    """The attempt used up its time; the last one ends the score as `timed_out`."""

    error_kind = "attempt_timed_out"


class WaitFor(_OfScore):
    """
    Nothing is wrong with the score; it has to wait and loses no attempt.

    Args:
        due_s: Seconds until it should be claimed again, > 0.
    """

    error_kind = "internal"
    waiting_for: ClassVar[WaitingFor]

    def __init__(self, message: str, due_s: float) -> None:
        super().__init__(message)
        self.due_s = due_s


class SessionNotReady(WaitFor):
    """
    An event was faster than its session: not found yet, or not terminal yet.

    Args:
        error_kind: What the score fails with if the grace ends: `session_not_found` or `session_not_terminal`.
    """

    waiting_for = "session"

    def __init__(self, message: str, due_s: float, error_kind: str) -> None:
        super().__init__(message, due_s)
        self.error_kind = error_kind  # type: ignore[misc]  # the only branch where it differs per instance


class RateLimited(WaitFor):
    """The provider asked for a wait longer than a worker should sleep."""

    error_kind = "judge_unavailable"
    waiting_for = "rate_limit"


class KeyRejected(WaitFor):
    """401 or 403: somebody has to change the key; no score is at fault."""

    error_kind = "judge_auth"
    waiting_for = "key"


class QuotaExhausted(WaitFor):
    """429 `insufficient_quota`: somebody has to pay; no score is at fault."""

    error_kind = "judge_unavailable"
    waiting_for = "quota"


class CircuitOpen(WaitFor):
    """The provider failed too often in a row; after a pause one call tries whether it is well again."""

    error_kind = "judge_unavailable"
    waiting_for = "circuit"


class BudgetExhausted(WaitFor):
    """The money of this day is spent or reserved; the work waits for the next one."""

    error_kind = "judge_unavailable"
    waiting_for = "budget"


class Paused(WaitFor):
    """Somebody paused the chain, the provider, or all judging."""

    error_kind = "judge_unavailable"
    waiting_for = "pause"


class Unscorable(_OfScore):
    """Permanent: the same attempt would end the same way."""

    error_kind = "internal"


class SessionNotFound(Unscorable):
    """No such session, or it was deleted."""

    error_kind = "session_not_found"


class SessionNotTerminal(Unscorable):
    """The session is still running."""

    error_kind = "session_not_terminal"


class ContextTooLong(Unscorable):
    """What must never be dropped does not fit into the judge's window."""

    error_kind = "context_too_long"


class PromptTooLong(ContextTooLong):
    """
    The endpoint says that the prompt does not fit into the model's window, or we know that before we send it.

    Args:
        window_tokens: Size of the window, where the endpoint reports it.
        prompt_tokens: Size of the prompt in the model's tokens, where the endpoint reports it.
    """

    def __init__(self, message: str, window_tokens: int | None, prompt_tokens: int | None) -> None:
        super().__init__(message)
        self.window_tokens = window_tokens
        self.prompt_tokens = prompt_tokens


class UnknownCriteria(Unscorable):
    """The request names criteria that this worker does not have."""

    error_kind = "unknown_criteria"


class NoScoreInAnswer(Unscorable):
    """No total on the last line, after all reminders."""

    error_kind = "no_score_in_answer"


class InvalidStructuredAnswer(Unscorable):
    """No JSON that fits the schema, after all reminders."""

    error_kind = "invalid_structured_answer"


class Refused(Unscorable):
    """The judge refused to answer."""

    error_kind = "refused"


class ContentFiltered(Unscorable):
    """The provider's filter withheld the answer."""

    error_kind = "content_filtered"


class AnswerCut(Unscorable):
    """The answer hit the reply limit twice, the second time a larger one."""

    error_kind = "answer_cut"


class EmptyAnswer(Unscorable):
    """The judge answered nothing."""

    error_kind = "empty_answer"


class JudgeRejectedRequest(Unscorable):
    """The endpoint says the request itself is wrong (400, 404, 422); retrying cannot help."""

    error_kind = "judge_rejected_request"


class LeaseLost(ScoringError):
    """The score is no longer ours; whoever holds it now goes on."""
