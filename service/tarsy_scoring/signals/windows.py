"""
Rolling figures of one chain: scores are summed up in panes, and every window is a sum of panes.

A window that moves by a hop consists of tumbling panes as long as the hop, so that a score is counted once per length
and not in each of the windows that hold it. All sums are of integers: they do not depend on the order of events, and
equal what SQL says of the same scores. Source: J. Li et al., No pane, no gain, SIGMOD Record 34(1), 2005.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from tarsy_scoring.events import ScoringCompleted, ScoringFailed

NANO = 1_000_000_000
MICRO = 1_000_000
MOST_NANO_USD = 10**6 * NANO  # of one score
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Length:
    """Windows of one length; they begin and end at whole hops since 1970, in UTC."""

    name: str
    length_s: int
    hop_s: int

    def end_behind(self, at_s: int) -> int:
        """The end of the window that closes first of those that hold this second: it reaches back the farthest."""
        return (at_s // self.hop_s + 1) * self.hop_s


SHORT = Length("1h", HOUR_S, 300)
LONG = Length("24h", 24 * HOUR_S, HOUR_S)
LENGTHS = (SHORT, LONG)

KEPT_S = 37 * HOUR_S
"""How old a score may be to be counted: the longest window, its hop, and 12 h for those who come late."""


@dataclass(frozen=True, slots=True)
class EndedScore:
    """
    What windows count of one score, which never changes once the score has ended.

    Args:
        at_us: `completed_at` of its row, in microseconds since 1970.
        error_kind: Why there is no score; None: it is completed.
        cost_nano_usd: What its turns cost in billionths of a dollar; None where that is unknown.
    """

    at_us: int
    total: int | None = None
    error_kind: str | None = None
    failure_tags: tuple[str, ...] = ()
    cost_nano_usd: int | None = None

    def encode(self) -> bytes:
        """As few bytes as JSON allows: this is what the changelog is made of."""
        return to_json([self.at_us, self.total, self.error_kind, self.failure_tags, self.cost_nano_usd])

    @classmethod
    def decode(cls, row: bytes) -> "EndedScore":
        """Raises: ValueError: It is none of ours."""
        at_us, total, error_kind, tags, cost = from_json(row)
        return cls(at_us, total, error_kind, tuple(tags), cost)


def read_ended(value: bytes) -> tuple[str, str, EndedScore] | None:
    """
    The chain, the score and what windows count of it; None: no end of a production score.

    Raises:
        ValueError: It is no scoring event.
    """
    try:
        told = from_json(value, allow_inf_nan=False)
        if told.get("type") not in ("scoring.completed", "scoring.failed") or told.get("purpose") != "production":
            return None
        event = (ScoringCompleted if told["type"] == "scoring.completed" else ScoringFailed).model_validate(told)
        at_us = event.timestamp_us if event.completed_at is None else microseconds(event.completed_at)
    except (ValidationError, AttributeError, TypeError) as error:
        raise ValueError("not a scoring event") from error
    chain, score_id = event.chain_id or "", event.score_id
    if "\0" in chain + score_id:
        raise ValueError("a name with a NUL character")
    if isinstance(event, ScoringFailed):
        return chain, score_id, EndedScore(at_us, error_kind=event.error_kind)
    cost = nano_usd(event.usage.cost_usd)
    if cost is not None and not 0 <= cost <= MOST_NANO_USD:
        raise ValueError("a cost that cannot be")
    return chain, score_id, EndedScore(at_us, event.total_score, None, tuple(event.failure_tags), cost)


def microseconds(at: datetime) -> int:
    """Since 1970, exactly."""
    return (at - EPOCH) // timedelta(microseconds=1)


def nano_usd(cost_usd: float | None) -> int | None:
    """An amount as it is written in JSON, rounded as PostgreSQL rounds a numeric."""
    if cost_usd is None:
        return None
    return int((Decimal(repr(cost_usd)) * NANO).to_integral_value(ROUND_HALF_UP))


@dataclass(slots=True)
class Figures:
    """Sums over ended scores; `add` in whatever order gives the same."""

    scores: int = 0
    scored: int = 0
    total: int = 0
    under_threshold: int = 0
    costed: int = 0
    cost_nano_usd: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    failure_tags: Counter[str] = field(default_factory=Counter)

    def count(self, ended: EndedScore, threshold: float) -> None:
        """Count one score; whoever calls sees to it that no score comes twice."""
        if ended.error_kind is not None:
            self.failures[ended.error_kind] += 1
            return
        self.scores += 1
        self.failure_tags.update(set(ended.failure_tags))
        if ended.total is not None:
            self.scored += 1
            self.total += ended.total
            self.under_threshold += ended.total < threshold
        if ended.cost_nano_usd is not None:
            self.costed += 1
            self.cost_nano_usd += ended.cost_nano_usd

    def add(self, other: "Figures") -> None:
        """Add the sums of other scores."""
        self.scores += other.scores
        self.scored += other.scored
        self.total += other.total
        self.under_threshold += other.under_threshold
        self.costed += other.costed
        self.cost_nano_usd += other.cost_nano_usd
        self.failures.update(other.failures)
        self.failure_tags.update(other.failure_tags)

    def document(self, length: Length, end_s: int, threshold: float) -> dict[str, Any]:
        """The figures of one window as its message has them."""
        return {
            "start": _moment(end_s - length.length_s),
            "end": _moment(end_s),
            "scores": self.scores,
            "scored": self.scored,
            "mean": self.total / self.scored if self.scored else None,
            "under_threshold": self.under_threshold,
            "threshold": int(threshold) if threshold == int(threshold) else threshold,
            "share_under_threshold": self.under_threshold / self.scored if self.scored else None,
            "failures": dict(sorted(self.failures.items())),
            "failure_tags": dict(sorted(self.failure_tags.items())),
            "cost_usd": self.cost_nano_usd / NANO if self.costed else None,
        }


class RollingWindows:
    """
    The windows of one chain over the scores it was given.

    Which window a score is in depends on its own time alone, never on a clock or on the order of arrival: the same
    scores give the same windows, however often and by whomever they are read.

    Args:
        threshold: Totals below it count as `under_threshold`.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._panes: dict[Length, dict[int, Figures]] = {length: {} for length in LENGTHS}
        self._rows: dict[int, list[bytes]] = {}
        self._newest_s: int | None = None
        self._unpublished: set[int] = set()

    def __bool__(self) -> bool:
        return self._newest_s is not None

    def count(self, row: bytes, ended: EndedScore) -> None:
        """
        Count a score that was not counted before.

        Args:
            row: Names the score in what `forget` gives back.
        """
        at_s = ended.at_us // MICRO
        for length, panes in self._panes.items():
            panes.setdefault(at_s // length.hop_s, Figures()).count(ended, self._threshold)
        self._rows.setdefault(at_s // LONG.hop_s, []).append(row)
        self._newest_s = at_s if self._newest_s is None else max(self._newest_s, at_s)

    def touch(self, at_us: int) -> None:
        """
        Have those windows published that hold this moment, up to the newest; also for a score that is a repeat.

        The repeat may come because somebody was killed between counting and publishing.
        """
        if self._newest_s is None:
            return
        at_s, newest_end_s = at_us // MICRO, SHORT.end_behind(self._newest_s)
        for length in LENGTHS:
            first_s = length.end_behind(at_s)
            last_s = min(first_s + length.length_s - length.hop_s, length.end_behind(self._newest_s))
            self._unpublished.update(min(end_s, newest_end_s) for end_s in range(first_s, last_s + 1, length.hop_s))

    def touch_newest(self) -> None:
        """Have the newest windows published."""
        if self._newest_s is not None:
            self.touch(self._newest_s * MICRO)

    def take_unpublished(self, kept_from_s: int) -> Iterator[dict[str, Any]]:
        """
        The windows to publish, as messages have them, the newest last, whatever changed.

        Args:
            kept_from_s: Windows that begin earlier are left out, since scores of theirs are forgotten.
        """
        ends, self._unpublished = self._unpublished, set()
        if not ends or self._newest_s is None:
            return
        for end_s in sorted(ends | {SHORT.end_behind(self._newest_s)}):
            if LONG.end_behind(end_s - 1) - LONG.length_s >= kept_from_s:
                yield self.at(end_s)

    def at(self, end_s: int) -> dict[str, Any]:
        """The short window that ends here, and the long one that closes first of those that reach so far."""
        return {
            SHORT.name: self.window(SHORT, end_s),
            LONG.name: self.window(LONG, LONG.end_behind(end_s - 1)),
        }

    def window(self, length: Length, end_s: int) -> dict[str, Any]:
        """One window, by its end, which is a whole hop."""
        figures, panes = Figures(), self._panes[length]
        for pane in range((end_s - length.length_s) // length.hop_s, end_s // length.hop_s):
            if (part := panes.get(pane)) is not None:
                figures.add(part)
        return figures.document(length, end_s, self._threshold)

    def forget(self, kept_from_s: int) -> list[bytes]:
        """Forget scores that are older, in whole hours; gives their rows."""
        hour = kept_from_s // LONG.hop_s
        forgotten = [row for old in [h for h in self._rows if h < hour] for row in self._rows.pop(old)]
        if forgotten:
            for length, panes in self._panes.items():
                for pane in [p for p in panes if p * length.hop_s < hour * LONG.hop_s]:
                    del panes[pane]
            if not self._rows:
                self._newest_s = None
        return forgotten


def kept_from(now_s: float) -> int:
    """From when on scores are kept, a whole hour."""
    return (int(now_s) - KEPT_S) // HOUR_S * HOUR_S


def _moment(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
