"""
How well one judge, a criteria at a provider, tells right conclusions from wrong ones.

A pair is a right and a wrong session from one source. The AUC is the share of pairs in which the right session
has the higher total; a tie counts half. A session without a total loses every pair.

Source:
    AUC: J. A. Hanley, B. J. McNeil, Radiology 143 (1982), 29-36. Percentile bootstrap: B. Efron, R. J.
    Tibshirani: An Introduction to the Bootstrap (1993), chapter 13. At 0 and 1, which resampling cannot leave:
    E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.labels.agreement import wilson
from tarsy_scoring.labels.calibration import OUTCOME_WORDS, read_outcome
from tarsy_scoring.labels.label_file import open_csv

Outcome = Literal["right", "partial", "wrong", "unknown"]

RESAMPLES = 2_000
FEWEST_INCIDENTS = 3
_SEED = 20_261_123  # the same judgements give the same interval
_OUTCOMES: Mapping[str, Outcome] = {"highest": "right", "middle": "partial", "lowest": "wrong"}


@dataclass(frozen=True, slots=True)
class KnownOutcome:
    """
    A session whose outcome is known.

    Args:
        source: Sessions from one source are comparable; empty where the file does not say.
        incident: Sessions about one incident are one observation.
    """

    session_id: str
    outcome: Outcome
    source: str
    incident: str


@dataclass(frozen=True, slots=True)
class BenchSample:
    """
    One judgement.

    Args:
        total: None without a score; `reason` then says why.
        checked, held: Citations that were checked, and those that hold.
        cost_usd: None where it is unknown.
        seconds: Time in which the provider answered.
        is_outstanding: The provider cannot be asked now; another run may give a total.
    """

    total: int | None
    reason: str | None = None
    checked: int = 0
    held: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    is_outstanding: bool = False


@dataclass(frozen=True, slots=True)
class JudgedSession:
    """A session with all samples by one judge."""

    known: KnownOutcome
    samples: Sequence[BenchSample]

    @property
    def total(self) -> int | None:
        """The samples' lower median, as in a stored score; None without any."""
        totals = [s.total for s in self.samples if s.total is not None]
        return statistics.median_low(totals) if totals else None

    @property
    def is_right(self) -> bool:
        """Whether the conclusion is right."""
        return self.known.outcome == "right"


def read_known_outcomes(path: Path) -> list[KnownOutcome]:
    """
    Read sessions with outcomes, one per line, from a CSV file with a header, in UTF-8.

    Every line has a `session_id` and an `outcome` (`correct`, `partial`, `wrong` and their synonyms; empty or
    `unknown`: not known). `source` and `incident` are optional; other columns are ignored.

    Raises:
        ConfigurationError: The file cannot be read or a line is invalid; with line and reason.
    """
    found: dict[str, KnownOutcome] = {}
    with open_csv(path) as (header, lines):
        if missing := [name for name in ("session_id", "outcome") if name not in header]:
            raise ConfigurationError(f"{path} has no column {missing[0]!r}")
        for line in lines:
            one = _known_outcome(line)
            if one.session_id in found:
                raise ValueError(f"the session {one.session_id} has an outcome already; keep one line")
            found[one.session_id] = one
    return list(found.values())


def _known_outcome(cells: Mapping[str, str]) -> KnownOutcome:
    session_id = cells["session_id"]
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise ValueError(f"{session_id[:80]!r} is not a session id")
    word = read_outcome(cells["outcome"], ())
    outcome: Outcome = "unknown" if word is None else _OUTCOMES[OUTCOME_WORDS[word]]
    return KnownOutcome(session_id, outcome, cells.get("source", ""), cells.get("incident") or session_id)


def describe(sessions: Sequence[JudgedSession]) -> dict[str, Any]:
    """
    Describe one judge; None stands for a figure that its judgements do not show.

    Returns:
        The 95 % interval of `auc` is None for fewer than three incidents. `sd` is the standard deviation over
        sessions, `citations_held` the share of checked citations; cost and seconds are means per score.

    Args:
        sessions: Every session has the outcome `right` or `wrong`.
    """
    right, wrong = [s for s in sessions if s.is_right], [s for s in sessions if not s.is_right]
    totals = [s.total for s in sessions if s.total is not None]
    samples = [sample for s in sessions for sample in s.samples]
    scored = [sample for sample in samples if sample.total is not None]
    value, low, high = auc(sessions)
    return {
        "n_right": len(right),
        "n_wrong": len(wrong),
        "auc": value,
        "auc_low": low,
        "auc_high": high,
        "mean_right": _mean(s.total for s in right),
        "mean_wrong": _mean(s.total for s in wrong),
        "sd": statistics.stdev(totals) if len(totals) > 1 else None,
        "lowest": min(totals, default=None),
        "highest": max(totals, default=None),
        "n_unscored": len(sessions) - len(totals),
        "citations_held": _share_held(samples),
        "cost_usd": _mean(sample.cost_usd for sample in scored),
        "seconds_per_score": _mean(sample.seconds for sample in scored),
    }


def _share_held(samples: Sequence[BenchSample]) -> float | None:
    checked = sum(s.checked for s in samples)
    return sum(s.held for s in samples) / checked if checked else None


def auc(sessions: Sequence[JudgedSession]) -> tuple[float | None, float | None, float | None]:
    """The AUC and an interval that resamples incidents; at 0 and 1 it is Wilson's, over incidents."""
    won, counted, right, wrong = _pairs(sessions)
    if not counted.sum():
        return None, None, None
    value = float((won * counted).sum() / counted.sum())
    incidents = list(dict.fromkeys((s.known.source, s.known.incident) for s in (*right, *wrong)))
    n = len(incidents)
    if n < FEWEST_INCIDENTS:
        return value, None, None
    if value in (0.0, 1.0):
        return value, *wilson(n if value else 0, n)
    drawn = np.random.default_rng(_SEED).multinomial(n, [1 / n] * n, size=RESAMPLES).astype(float)
    of_right, of_wrong = (
        drawn[:, [incidents.index((s.known.source, s.known.incident)) for s in side]]
        for side in (right, wrong)
    )
    pairs = ((of_right @ counted) * of_wrong).sum(axis=1)
    wins = ((of_right @ (won * counted)) * of_wrong).sum(axis=1)
    low, high = np.percentile(wins[pairs > 0] / pairs[pairs > 0], [2.5, 97.5])
    return value, float(low), float(high)


def misranked(sessions: Sequence[JudgedSession]) -> list[dict[str, Any]]:
    """The sessions that lose a pair (a tie is half a lost one), or have no score, most lost pairs first."""
    won, counted, right, wrong = _pairs(sessions)
    lost = (1 - won) * counted
    found = [
        {
            "session_id": s.known.session_id,
            "outcome": s.known.outcome,
            "total": s.total,
            "lost": float(of_session),
            "pairs": int(pairs),
            "reason": None if s.total is not None else s.samples[0].reason,
        }
        for side, axis in ((right, 1), (wrong, 0))
        for s, of_session, pairs in zip(side, lost.sum(axis=axis), counted.sum(axis=axis), strict=True)
        if of_session or s.total is None
    ]
    return sorted(found, key=lambda m: (-m["lost"], m["session_id"]))


def _pairs(
    sessions: Sequence[JudgedSession],
) -> tuple[np.ndarray, np.ndarray, list[JudgedSession], list[JudgedSession]]:
    """Two matrices, right by wrong: 1 where the pair is won and 0.5 for a tie; 1 where the pair counts."""
    right, wrong = [s for s in sessions if s.is_right], [s for s in sessions if not s.is_right]
    shape = len(right), len(wrong)
    won = np.array([_won(r.total, w.total) for r in right for w in wrong], dtype=float).reshape(shape)
    same = [r.known.source == w.known.source for r in right for w in wrong]
    return won, np.array(same, dtype=float).reshape(shape), right, wrong


def _won(right: int | None, wrong: int | None) -> float:
    if right is None or wrong is None:
        return 0.0
    return 1.0 if right > wrong else 0.5 if right == wrong else 0.0


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
