"""Compares a judge's scores with labels by people or oracles, per criteria and judge fingerprint."""

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
Source = Literal["random", "picked"]


@dataclass(frozen=True, slots=True)
class Label:
    """
    How a person or an oracle rates a session.

    Args:
        outcome: A word of `OUTCOME_WORDS` or the id of a band; None: not given or undecided.
        number: 0-100, like a total; None: not given.
        source: How the session was chosen: at random, or because it was interesting.
    """

    session_id: str
    outcome: str | None = None
    number: float | None = None
    source: Source = "random"

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
class TrustCard:
    """
    How well one judge under one criteria agrees with the labels.

    A session is matched when it is labelled and scored, and label and total are in a band.

    Args:
        by_source: The same kappa for each source's labels alone. Only random ones represent all scores.
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
    by_source: dict[Source, Kappa]
    confusion: Confusion
    mean_difference: float | None
    needed: int
    still_needed: int
    unmatched: int
    unplaced: int
    disputed: int
    meaning: str


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
    pairs: dict[Source, list[tuple[str, str]]] = {"random": [], "picked": []}
    differences = list[float]()
    unplaced = disputed = 0
    for session_id, labels in by_session.items():
        if (score := scored.get(session_id)) is None:
            continue
        said = _band_indexes(labels, bands)
        judged = score.judge_outcome if score.judge_outcome in ids else band_of(score.total, bands)
        if not said or judged is None:
            unplaced += 1
            continue
        disputed += len(set(said)) > 1
        pairs[_source_of(labels)].append((ids[statistics.median_low(said)], judged))
        differences += _difference(score, labels)
    table = confusion([*pairs["random"], *pairs["picked"]], ids)
    kappa = kappa_of(table)
    needed = labels_needed(kappa)
    return TrustCard(
        *judge,
        bands,
        matched=table.n,
        kappa=kappa,
        by_source={source: kappa_of(confusion(found, ids)) for source, found in pairs.items()},
        confusion=table,
        mean_difference=statistics.fmean(differences) if differences else None,
        needed=needed,
        still_needed=max(needed - table.n, 0),
        unmatched=sum(session_id not in scored for session_id in by_session),
        unplaced=unplaced,
        disputed=disputed,
        meaning=in_words(kappa, table),
    )


def _band_indexes(labels: Iterable[Label], bands: Sequence[Band]) -> list[int]:
    ids = [b.id for b in bands]
    return [ids.index(band) for label in labels if (band := band_of_label(label, bands)) is not None]


def _source_of(labels: Iterable[Label]) -> Source:
    return "random" if any(label.source == "random" for label in labels) else "picked"


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
