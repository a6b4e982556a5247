"""
Compares a judge's scores with labels of people or oracles, per criteria and judge fingerprint.

Labels that were picked as interesting, with unknown probability, enter no estimate. Undecided labels are
ignored. Only `read_labels` reads a file.
"""

import csv
import io
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from tarsy_scoring.config.explain import suggest
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SESSION_ID_PATTERN
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, band_of
from tarsy_scoring.statistics.agreement import HALF_WIDTH, Estimate
from tarsy_scoring.statistics.sentences import sentence
from tarsy_scoring.statistics.trust_card import ASSUMED_KAPPA, Rating, TrustCard

# Words for outcomes, as used by people, by TARSy's quality_rating and by benchmarks. They mean the lowest,
# the middle and the highest band, whatever the criteria call these.
OUTCOME_WORDS: Mapping[str, Literal["lowest", "middle", "highest"]] = {
    **dict.fromkeys(("wrong", "incorrect", "inaccurate"), "lowest"),
    **dict.fromkeys(("partial", "partially_correct", "partially_accurate"), "middle"),
    **dict.fromkeys(("correct", "accurate"), "highest"),
}
UNDECIDED_WORDS = ("", "unknown")

Field = Literal["session_id", "outcome", "number", "labeller", "selection"]
# Accepted column names, in order of preference. A benchmark's own `score` is not among them: it is not a
# total of 0-100, and benchmarks also give one to undecided outcomes.
COLUMNS: Mapping[Field, tuple[str, ...]] = {
    "session_id": ("session_id",),
    "outcome": ("outcome", "quality_rating"),
    "number": ("number",),
    "labeller": ("labeller", "basis"),
    "selection": ("selection",),
}

# Source: J. R. Landis, G. G. Koch, Biometrics 33 (1977), 159-174. Conventional wording; not used as a
# threshold.
_STRENGTHS = (
    (0.2, "slightly"),
    (0.4, "fairly"),
    (0.6, "moderately"),
    (0.8, "substantially"),
    (1.0, "almost perfectly"),
)


@dataclass(frozen=True, slots=True)
class Label:
    """
    A person's or an oracle's rating of a session.

    Args:
        outcome: A word of `OUTCOME_WORDS` or the id of a band; None: not given or undecided.
        number: 0-100, like a total; None: not given.
        is_random: Whether the session was drawn with a known probability. A session that was picked with an
            unknown one does not represent other sessions.
        inclusion_probability: Probability that the session would be labelled, relative to the others.
    """

    session_id: str
    outcome: str | None = None
    number: float | None = None
    labeller: str | None = None
    is_random: bool = True
    inclusion_probability: float = 1.0

    @property
    def is_decided(self) -> bool:
        """Whether it has an outcome or a number."""
        return self.outcome is not None or self.number is not None


@dataclass(frozen=True, slots=True)
class LabelledScore:
    """The fields of a completed score that are compared with a label."""

    session_id: str
    total: float
    criteria: str
    criteria_hash: str
    judge_fingerprint: str
    judge_outcome: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(TrustCard):
    """
    Agreement of one judge under one criteria with the labels, as its trust card over the matched sessions.

    A session is matched when it was randomly drawn, labelled and scored, and label and total are in a band.

    Args:
        unmatched: Labelled sessions (decided, randomly drawn) without a score of this judge.
        unplaced: Sessions whose label or total is in no band of the criteria.
        picked: Number of sessions with label and score that are left out because they were picked for review.
        disputed: Number of matched sessions that labellers put into different bands; the lower median counts.
        meaning: The result in a few plain sentences.
    """

    criteria: str
    criteria_hash: str
    judge_fingerprint: str
    bands: tuple[Band, ...]
    unmatched: tuple[str, ...]
    unplaced: tuple[str, ...]
    picked: int
    disputed: int
    meaning: str


# --- calibrating ---------------------------------------------------------------------------------------


def calibrate(
    labels: Iterable[Label], scores: Iterable[LabelledScore], bands_by_hash: Mapping[str, Sequence[Band]]
) -> list[Calibration]:
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
    calibrations = [
        _calibrate_judge(judge, by_session, scored, tuple(bands_by_hash.get(judge[1], DEFAULT_BANDS)))
        for judge, scored in groups.items()
    ]
    return sorted(calibrations, key=lambda c: (-c.matched, c.criteria, c.criteria_hash, c.judge_fingerprint))


def _calibrate_judge(
    judge: tuple[str, str, str],
    by_session: Mapping[str, Sequence[Label]],
    scored: Mapping[str, LabelledScore],
    bands: tuple[Band, ...],
) -> Calibration:
    # Loads numpy: 15 MB that a process without labels does not need.
    from tarsy_scoring.statistics.trust import trust_card

    ids = [b.id for b in bands]
    ratings, unmatched, unplaced = list[Rating](), list[str](), list[str]()
    picked = disputed = 0
    for session_id, labels in by_session.items():
        score = scored.get(session_id)
        drawn = [label.inclusion_probability for label in labels if label.is_random]
        if not drawn:
            picked += score is not None
            continue
        if score is None:
            unmatched.append(session_id)
            continue
        said = [ids.index(band) for label in labels if (band := band_of_label(label, bands)) is not None]
        judged = score.judge_outcome if score.judge_outcome in ids else band_of(score.total, bands)
        if not said or judged is None:
            unplaced.append(session_id)
            continue
        disputed += len(set(said)) > 1
        numbers = [label.number for label in labels if label.number is not None]
        number = statistics.median_low(numbers) if numbers else None
        ratings.append(Rating(ids[statistics.median_low(said)], judged, score.total, number, max(drawn)))
    card = trust_card(ratings, bands)
    return Calibration(
        **{f.name: getattr(card, f.name) for f in fields(card)},
        criteria=judge[0],
        criteria_hash=judge[1],
        judge_fingerprint=judge[2],
        bands=bands,
        unmatched=tuple(sorted(unmatched)),
        unplaced=tuple(sorted(unplaced)),
        picked=picked,
        disputed=disputed,
        meaning=" ".join(_meaning(card)),
    )


def band_of_label(label: Label, bands: Sequence[Band]) -> str | None:
    """
    The band of a label: the one it names, else the one its word means, else the one of its number.

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


def _meaning(card: TrustCard) -> Iterator[str]:
    """The result in a few sentences."""
    kappa, table = card.kappa, card.confusion
    yield _agreement(kappa)
    if kappa.value is not None and (differing := table.n - table.agreeing):
        higher, lower = table.judge_higher, table.judge_lower
        yield sentence("differ", differing=differing, n=table.n, higher=higher, lower=lower)
    judged = map(any, zip(*table.counts, strict=True))
    sides = zip(table.categories, table.counts, judged, strict=True)
    lacking = [repr(category) for category, labels, is_judged in sides if is_judged and not any(labels)]
    if kappa.value is not None and lacking:
        yield sentence("unlabelled_bands", bands=" and ".join(lacking))
    if card.still_needed == 0:
        yield sentence("enough_labels", half_width=HALF_WIDTH)
    elif card.still_needed:
        labels = f"{card.still_needed} more label{'s' if card.still_needed > 1 else ''}"
        plan = "first_plan" if card.is_supposed else "more_labels"
        yield sentence(plan, labels=labels, half_width=HALF_WIDTH, assumed=ASSUMED_KAPPA)


def _agreement(kappa: Estimate) -> str:
    if kappa.value is None:
        return sentence("agreement_unknown", reason=kappa.reason)
    if kappa.low is None or kappa.high is None:
        name = "agrees_on_all" if kappa.value == 1 else "kappa_without_interval"
        return sentence(name, n=kappa.n, kappa=kappa.value, reason=kappa.reason)
    numbers = {"kappa": kappa.value, "low": kappa.low, "high": kappa.high}
    if kappa.low <= 0:
        chance = "less than" if kappa.high < 0 else "no better than"
        return sentence("agrees", how=f"with the labels {chance} by chance", **numbers)
    strength = next(word for limit, word in _STRENGTHS if kappa.value <= limit)
    return sentence("agrees", how=f"{strength} with the labels", **numbers)


# --- reading labels ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelFile:
    """The labels of a file, and the names of its columns that are not read."""

    labels: list[Label]
    unread_columns: tuple[str, ...]


def read_labels(path: Path, band_ids: Collection[str] = ()) -> LabelFile:
    """
    Read labels from a CSV file with a header, one per line, in UTF-8.

    Every line has a `session_id` and an `outcome` (a word of `OUTCOME_WORDS` or a band's id; empty or
    `unknown`: undecided), a `number` of 0-100, or both. `selection` is `random` (the default) or `picked`.
    Other columns are not read. Remove ratings that TARSy filled in by itself (those older than its migration
    of March 2026): they are not labels.

    Args:
        band_ids: Ids of bands that an outcome may name, in addition to those of `DEFAULT_BANDS`.

    Raises:
        ConfigurationError: The file cannot be read or a line is invalid; with line and reason.
    """
    known_bands = {*band_ids, *(b.id for b in DEFAULT_BANDS)}
    places, header = dict[Field, int](), list[str]()
    labels, lines = list[Label](), dict[tuple[str, str | None], int]()
    try:
        reader = csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8; export it as CSV in UTF-8"
        raise ConfigurationError(f"cannot read {path}: {why}") from error
    try:
        for cells in reader:
            if not any(c.strip() for c in cells):
                continue
            if not places:
                places, header = _find_columns(cells, path), cells
                continue
            if len(cells) != len(header):
                raise ValueError(f"it has {len(cells)} fields, the header has {len(header)}")
            label = _label({what: cells[i].strip() for what, i in places.items()}, known_bands)
            first = lines.setdefault((label.session_id, label.labeller), reader.line_num)
            if first != reader.line_num:
                raise ValueError(f"the same labeller labels this session in line {first} already")
            labels.append(label)
    except (ValueError, csv.Error) as error:
        raise ConfigurationError(f"{path}, line {reader.line_num}: {error}") from None
    if not places:
        raise ConfigurationError(f"{path} is empty; its first line must name the columns")
    numbers = [label.number for label in labels if label.number is not None]
    if numbers and max(numbers) <= 1 and any(numbers):
        raise ConfigurationError(
            f"{path}: every value of the column 'number' is between 0 and 1; labels are 0-100, as totals are"
        )
    return LabelFile(labels, tuple(name.strip() for i, name in enumerate(header) if i not in places.values()))


def _find_columns(header: Sequence[str], where: Path) -> dict[Field, int]:
    names = [name.strip().casefold() for name in header]
    places: dict[Field, int] = {}
    for what, usual in COLUMNS.items():
        found = next((name for name in usual if name in names), None)
        if found is not None:
            if names.count(found) > 1:
                raise ConfigurationError(f"{where} has two columns {found!r}")
            places[what] = names.index(found)
    if "session_id" not in places:
        raise ConfigurationError(f"{where} has no column 'session_id' (it has: {', '.join(header)})")
    if "outcome" not in places and "number" not in places:
        raise ConfigurationError(
            f"{where} has neither a column 'outcome' nor 'number' (it has: {', '.join(header)})"
        )
    return places


def _label(cells: Mapping[Field, str], band_ids: set[str]) -> Label:
    session_id = cells["session_id"]
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise ValueError(f"{session_id[:80]!r} is not a session id")
    selection = cells.get("selection", "").casefold()
    if selection not in ("", "random", "picked"):
        raise ValueError(f"the selection is {selection[:80]!r}; it can be 'random' or 'picked'")
    return Label(
        session_id,
        outcome=read_outcome(cells.get("outcome", ""), band_ids),
        number=_number(cells.get("number", "")),
        labeller=cells.get("labeller") or None,
        is_random=selection != "picked",
    )


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
    raise ValueError(
        f"{text[:80]!r} is not an outcome{suggest(word, {*OUTCOME_WORDS, *band_ids, 'unknown'})}"
    )


def _number(text: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text[:80]!r} is not a number") from None
    if not 0 <= number <= 100:
        raise ValueError(f"the number is {text[:80]}; it must be 0-100")
    return number
