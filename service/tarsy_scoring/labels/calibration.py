"""Compares a judge's scores with labels by people or oracles, per criteria and judge fingerprint."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tarsy_scoring.config.explain import suggest
from tarsy_scoring.labels.agreement import Confusion, Kappa, confusion, in_words, kappa_of, labels_needed
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of

# Words for outcomes, as used by people, by TARSy's quality_rating and by benchmarks. They mean the lowest,
# the middle and the highest band, whatever the criteria call these.
OUTCOME_WORDS: Mapping[str, Literal["lowest", "middle", "highest"]] = {
    **dict.fromkeys(("wrong", "incorrect", "inaccurate"), "lowest"),
    **dict.fromkeys(("partial", "partially_correct", "partially_accurate"), "middle"),
    **dict.fromkeys(("correct", "accurate"), "highest"),
}
UNDECIDED_WORDS = ("", "unknown")
Selection = Literal["random", "picked"]
Source = Literal["tarsy", "page", "api", "file"]
"""Where a label was given: as a review in TARSy, on a page, over HTTP, or in a file of `calibrate`."""


@dataclass(frozen=True, slots=True)
class Label:
    """
    How a person or an oracle rates a session.

    Args:
        outcome: A word of `OUTCOME_WORDS` or the id of a band; None: not given or undecided.
        number: 0-100, like a total; None: not given.
        selection: How the session was chosen: at random, or because it was interesting.
    """

    session_id: str
    outcome: str | None = None
    number: float | None = None
    selection: Selection = "random"
    source: Source = "file"
    by: str | None = None
    at: datetime | None = None
    reason: str | None = None

    @property
    def is_decided(self) -> bool:
        """Whether it has an outcome or a number."""
        return self.outcome is not None or self.number is not None


@dataclass(frozen=True, slots=True)
class LabelledScore:
    """Those fields in a completed score that are compared with a label."""

    session_id: str
    total: float
    criteria: str
    criteria_hash: str
    judge_fingerprint: str
    judge_outcome: str | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """
    How the labelled sessions differ from the others, among the newest 5,000 scores.

    Args:
        scored: Sessions that the judge scored.
        labelled: Those of them that have a label.
        mean_labelled, mean_others: Mean totals.
    """

    scored: int
    labelled: int
    mean_labelled: float | None
    mean_others: float | None

    def in_words(self) -> str:
        """The same in a sentence or two."""
        said = f"{self.labelled:,} of {self.scored:,} scored sessions have a label"
        if self.mean_labelled is None or self.mean_others is None:
            return f"{said}."
        return (
            f"{said}. Mean total {self.mean_labelled:.1f}, others {self.mean_others:.1f} "
            f"(difference {self.mean_labelled - self.mean_others:+.1f}); reviewers choose what they review."
        )


@dataclass(frozen=True, slots=True)
class TrustCard:
    """
    How well one judge under one criteria agrees with the labels.

    A session is matched when it is labelled and scored, and label and total are in a band.

    Args:
        by_source: The same kappa for random and for picked sessions alone. Only random ones represent all.
        sources: How many of the labels were given where.
        mean_difference: Total minus number over the labels with a number; above 0 the judge is milder.
        still_needed: `needed` minus the existing labels.
        unmatched: Labelled sessions that this judge did not score.
        unplaced: Sessions whose label or total is in no band of the criteria.
        disputed: Matched sessions that people put into different bands; the lower median counts.
        meaning: The result in a few plain sentences.
    """

    criteria: str
    criteria_hash: str
    judge_fingerprint: str
    bands: tuple[Band, ...]
    matched: int
    kappa: Kappa
    by_source: dict[Selection, Kappa]
    sources: dict[Source, int]
    confusion: Confusion
    mean_difference: float | None
    needed: int
    still_needed: int
    unmatched: int
    unplaced: int
    disputed: int
    meaning: str
    coverage: Coverage | None = None


def calibrate(
    labels: Iterable[Label], scores: Iterable[LabelledScore], bands_by_hash: Mapping[str, Sequence[Band]]
) -> list[TrustCard]:
    """
    Compare scores with labels, separately for each criteria hash and judge fingerprint.

    The judge's band is the outcome it stated, else the band of its total. A session counts once, however many
    people labelled it.

    Args:
        scores: The last one counts among those with the same session, criteria hash and fingerprint.
        bands_by_hash: Bands of the criteria, lowest first; `DEFAULT_BANDS` for an unknown hash.

    Returns:
        One per judge, most matched sessions first; empty without scores.
    """
    by_session: dict[str, list[Label]] = defaultdict(list)
    for label in labels:
        if label.is_decided:
            by_session[label.session_id].append(label)
    groups: dict[tuple[str, str, str], dict[str, LabelledScore]] = defaultdict(dict)
    for score in scores:
        groups[score.criteria, score.criteria_hash, score.judge_fingerprint][score.session_id] = score
    cards = [
        _card(judge, by_session, scored, tuple(bands_by_hash.get(judge[1], DEFAULT_BANDS)))
        for judge, scored in groups.items()
    ]
    return sorted(cards, key=lambda c: (-c.matched, c.criteria, c.criteria_hash, c.judge_fingerprint))


def _card(
    judge: tuple[str, str, str],
    by_session: Mapping[str, Sequence[Label]],
    scored: Mapping[str, LabelledScore],
    bands: tuple[Band, ...],
) -> TrustCard:
    ids = [b.id for b in bands]
    pairs: dict[Selection, list[tuple[str, str]]] = {"random": [], "picked": []}
    sources = Counter[Source]()
    differences = list[float]()
    unplaced = disputed = 0
    for session_id, labels in by_session.items():
        if (score := scored.get(session_id)) is None:
            continue
        if (found := verdicts(labels, score.total, score.judge_outcome, bands)) is None:
            unplaced += 1
            continue
        disputed += len(set(_band_indexes(labels, bands))) > 1
        sources.update(label.source for label in labels)
        pairs[_selection_of(labels)].append((ids[found[0]], ids[found[1]]))
        differences += _difference(score, labels)
    table = confusion([*pairs["random"], *pairs["picked"]], ids)
    kappa = kappa_of(table)
    needed = labels_needed(kappa)
    return TrustCard(
        *judge,
        bands,
        matched=table.n,
        kappa=kappa,
        by_source={selection: kappa_of(confusion(found, ids)) for selection, found in pairs.items()},
        sources=dict(sources),
        confusion=table,
        mean_difference=statistics.fmean(differences) if differences else None,
        needed=needed,
        still_needed=max(needed - table.n, 0),
        unmatched=sum(session_id not in scored for session_id in by_session),
        unplaced=unplaced,
        disputed=disputed,
        meaning=in_words(kappa, table),
    )


def verdicts(
    labels: Iterable[Label], total: float, judge_outcome: str | None, bands: Sequence[Band]
) -> tuple[int, int] | None:
    """
    The places of the bands, lowest first, that people and the judge state; None: one of them is in no band.

    Of several labels the lower median counts, of the judge the stated outcome, else the band of the total.
    """
    ids, said = [b.id for b in bands], _band_indexes(labels, bands)
    judged = judge_outcome if judge_outcome in ids else band_of(total, bands)
    return None if not said or judged is None else (statistics.median_low(said), ids.index(judged))


def _band_indexes(labels: Iterable[Label], bands: Sequence[Band]) -> list[int]:
    ids = [b.id for b in bands]
    return [ids.index(band) for label in labels if (band := band_of_label(label, bands)) is not None]


def _selection_of(labels: Iterable[Label]) -> Selection:
    return "random" if any(label.selection == "random" for label in labels) else "picked"


def _difference(score: LabelledScore, labels: Iterable[Label]) -> list[float]:
    """The total minus the labels' lower median; empty without a number."""
    numbers = [label.number for label in labels if label.number is not None]
    return [score.total - statistics.median_low(numbers)] if numbers else []


def band_of_label(label: Label, bands: Sequence[Band]) -> str | None:
    """
    The band that a label names, else the one that the word means, else the one that holds the number.

    None without a match: for an undecided label, or for a word for the middle band when there are not three
    bands.
    """
    ids = [b.id for b in bands]
    if label.outcome is None:
        return None if label.number is None else band_of(label.number, bands)
    if label.outcome in ids:
        return label.outcome
    level = OUTCOME_WORDS.get(label.outcome)
    if level == "middle":
        return ids[1] if len(ids) == 3 else None
    return None if level is None else ids[0 if level == "lowest" else -1]


def read_outcome(text: str, band_ids: Collection[str]) -> str | None:
    """
    Parse an outcome: the id of a band, else a word of `OUTCOME_WORDS`; None: undecided.

    Raises:
        ValueError: Unknown outcome; suggests the nearest known one.
    """
    if text in band_ids:
        return text
    word = "_".join(text.casefold().replace("-", " ").split())
    if word in UNDECIDED_WORDS:
        return None
    if word in OUTCOME_WORDS or word in band_ids:
        return word
    near = suggest(word, {*OUTCOME_WORDS, *band_ids, "unknown"})
    raise ValueError(f"{text[:80]!r} is not an outcome{near}")
