"""Reading labels and comparing them with scores."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.labels.calibration import (
    Calibration,
    Label,
    LabelledScore,
    band_of_label,
    calibrate,
    read_labels,
)
from tarsy_scoring.scores.bands import DEFAULT_BANDS, Band, bands_of

OUTCOME_BANDS = bands_of({"correct": (60, 100), "partial": (35, 59), "wrong": (0, 34)})
HALVES = bands_of({"bad": (0, 49), "good": (50, 100)})


def score(session_id: str, total: float, **changes: str) -> LabelledScore:
    of = LabelledScore(session_id, total, "methodology", "hash-1", "judge-1")
    return replace(of, **changes)


def many(*counts: tuple[str, float, int]) -> tuple[list[Label], list[LabelledScore]]:
    """Labels and scores: so many sessions with that outcome and that total."""
    labels, scores = list[Label](), list[LabelledScore]()
    for outcome, total, times in counts:
        for _ in range(times):
            labels.append(Label(f"s-{len(labels)}", outcome=outcome))
            scores.append(score(labels[-1].session_id, total))
    return labels, scores


def one(labels: Sequence[Label], scores: Sequence[LabelledScore], bands: Sequence[Band] = DEFAULT_BANDS) -> Calibration:
    [found] = calibrate(labels, scores, {"hash-1": bands})
    return found


# --- calibrating ---------------------------------------------------------------------------------------


def test_labels_and_scores_are_matched_by_session() -> None:
    labels = [
        *(Label("s-1", "wrong"), Label("s-2", "correct"), Label("s-3", "partial")),
        *(Label("s-5", "wrong"), Label("s-4", "correct"), Label("s-6")),
    ]
    scores = [score("s-1", 30), score("s-2", 60), score("s-3", 60), score("s-6", 10), score("s-7", 20)]

    found = one(labels, scores)

    assert found.matched == 3
    assert found.confusion.categories == ("0-49", "50-74", "75-100")
    assert found.confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 1, 0))
    assert found.unmatched == ("s-4", "s-5")
    assert (found.unplaced, found.picked, found.disputed) == ((), 0, 0)


def test_each_criteria_and_fingerprint_is_calibrated_by_itself() -> None:
    labels = [Label("s-1", "wrong"), Label("s-2", "correct")]
    scores = [
        score("s-1", 90, judge_fingerprint="judge-2"),
        *(score("s-1", 10), score("s-2", 90)),
        score("s-2", 70, criteria="outcome", criteria_hash="hash-2"),
    ]

    found = calibrate(labels, scores, {"hash-2": OUTCOME_BANDS})

    assert [(c.criteria_hash, c.judge_fingerprint, c.matched) for c in found] == [
        *(("hash-1", "judge-1", 2), ("hash-1", "judge-2", 1)),
        ("hash-2", "judge-1", 1),
    ]
    assert [c.unmatched for c in found] == [(), ("s-2",), ("s-1",)]
    assert [c.bands for c in found] == [DEFAULT_BANDS, DEFAULT_BANDS, OUTCOME_BANDS]
    assert found[0].confusion.agreeing == 2


def test_sessions_that_were_picked_for_review_do_not_count() -> None:
    labels, scores = many(("correct", 90, 15), ("wrong", 20, 15), ("correct", 20, 3))
    clean = one(labels, scores)
    hard = [Label(f"hard-{i}", "correct", is_random=False) for i in range(50)]

    found = one([*labels, *hard], [*scores, *(score(label.session_id, 0) for label in hard[:40])])

    assert found.picked == 40
    assert replace(found, picked=0) == clean


def test_a_session_that_was_drawn_and_later_picked_counts() -> None:
    labels = [Label("s-1", "wrong", labeller="ann"), Label("s-1", "wrong", labeller="ben", is_random=False)]

    found = one(labels, [score("s-1", 20)])

    assert (found.matched, found.picked) == (1, 0)


def test_numbers_of_labels_say_how_mild_the_judge_is() -> None:
    labels = [*(Label("s-1", number=n, labeller=str(n)) for n in (40, 60, 90)), Label("s-2", "wrong")]

    found = one(labels, [score("s-1", 70), score("s-2", 20)])

    assert (found.mean_difference.value, found.mean_difference.n) == (10, 1)


def test_several_labellers_of_a_session_make_one_label() -> None:
    labels = [
        *(Label("s-1", "wrong", labeller=who) for who in ("ann", "ben")),
        *(Label("s-2", what, labeller=who) for who, what in (("ann", "correct"), ("ben", "partial"))),
        *(Label("s-3", what) for what in ("correct", "correct", "wrong")),
    ]

    found = one(labels, [score("s-1", 20), score("s-2", 60), score("s-3", 90)])

    assert (found.matched, found.disputed) == (3, 2)
    assert found.confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def test_the_outcome_that_the_judge_stated_is_its_band() -> None:
    labels = [Label("s-1", "wrong"), Label("s-2", "correct"), Label("s-3", "partial")]
    scores = [
        score("s-1", 70, judge_outcome="wrong"),
        score("s-2", 70),
        score("s-3", 40, judge_outcome="splendid"),
    ]

    assert one(labels, scores, OUTCOME_BANDS).confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def test_sessions_without_a_band_are_named_and_not_counted() -> None:
    gap = bands_of({"bad": (0, 40), "good": (60, 100)})
    labels = [Label("s-1", "partial"), Label("s-2", "correct"), Label("s-3", "wrong")]

    found = one(labels, [score("s-1", 20), score("s-2", 50), score("s-3", 10)], gap)

    assert (found.matched, found.unplaced) == (1, ("s-1", "s-2"))


MEANINGS = {
    "substantial": (
        (("correct", 90, 40), ("wrong", 20, 40), ("partial", 60, 12), ("wrong", 60, 6), ("correct", 60, 4)),
        "The judge agrees almost perfectly with the labels (weighted kappa 0.94, 95 % interval 0.89 to 0.97). They "
        "differ on 10 of 102 sessions: the judge is higher on 6 of them and lower on 4. The labels are enough for "
        "an interval within 0.10 to either side.",
    ),
    "chance": (
        (("correct", 90, 10), ("wrong", 20, 10), ("wrong", 90, 10), ("correct", 20, 10)),
        "The judge agrees with the labels no better than by chance (weighted kappa 0.00, 95 % interval -0.30 to "
        "0.30). They differ on 20 of 40 sessions: the judge is higher on 10 of them and lower on 10. About 327 more "
        "labels of randomly drawn sessions would bring the interval within 0.10 to either side.",
    ),
    "worse": (
        (("correct", 20, 20), ("wrong", 90, 18), ("wrong", 20, 3), ("correct", 90, 3)),
        "The judge agrees with the labels less than by chance (weighted kappa -0.72, 95 % interval -0.88 to -0.42). "
        "They differ on 38 of 44 sessions: the judge is higher on 18 of them and lower on 20. About 161 more "
        "labels of randomly drawn sessions would bring the interval within 0.10 to either side.",
    ),
    "few": (
        (("correct", 90, 5), ("wrong", 20, 5), ("wrong", 60, 1)),
        "The weighted kappa is 0.95, but 11 sessions are too few for an interval; it takes 20. They differ on 1 of 11 "
        "sessions: the judge is higher on 1 of them and lower on 0. The judge uses '50-74', which no label does, so "
        "full agreement is out of reach with these labels. As a first plan, about 268 more labels of randomly drawn "
        "sessions would give an interval within 0.10 to either side (assuming a kappa of 0.6).",
    ),
    "perfect": (
        (("correct", 90, 20), ("wrong", 20, 20)),
        "The judge agrees with the label on all 40 sessions; perfect agreement leaves no error to measure, so there "
        "is no interval.",
    ),
    "constant": (
        (("correct", 90, 20), ("correct", 20, 20)),
        "Agreement is unknown: every label is '75-100', and agreement beyond chance needs two categories.",
    ),
}


def test_the_meaning_is_stated_in_sentences() -> None:
    """Degree of agreement, direction of the judge's errors, limits of the labels, and labels still needed."""
    for name, (counts, meaning) in MEANINGS.items():
        assert one(*many(*counts)).meaning == meaning, name
    one_band = one([Label("s-1", "wrong")], [score("s-1", 20)], [Band("all", 0, 100)])
    assert (one_band.matched, one_band.needed.reason) == (1, "agreement beyond chance needs two bands")
    assert calibrate([Label("s-1", "wrong")], [], {}) == []


def test_a_label_means_one_band() -> None:
    """The band that it names, else that of its word, else that of its number."""
    cases: list[tuple[Label, Sequence[Band], str | None]] = [
        (Label("s", "wrong"), OUTCOME_BANDS, "wrong"),
        (Label("s", "incorrect"), OUTCOME_BANDS, "wrong"),
        (Label("s", "partially_accurate"), OUTCOME_BANDS, "partial"),
        (Label("s", "accurate"), DEFAULT_BANDS, "75-100"),
        (Label("s", "partial"), DEFAULT_BANDS, "50-74"),
        (Label("s", "wrong"), HALVES, "bad"),
        (Label("s", "partial"), HALVES, None),
        (Label("s", "75-100"), OUTCOME_BANDS, None),
        (Label("s", number=49.6), DEFAULT_BANDS, "50-74"),
        (Label("s", "wrong", number=90), DEFAULT_BANDS, "0-49"),
        (Label("s"), DEFAULT_BANDS, None),
    ]

    assert [band_of_label(label, bands) for label, bands, _ in cases] == [expected for *_, expected in cases]


# --- reading labels ------------------------------------------------------------------------------------


def write(folder: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = folder / "labels.csv"
    path.write_bytes("\r\n".join(lines).encode(encoding))
    return path


def test_all_columns_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "Note, Session_ID ,outcome,number,labeller,selection,extra",
        '"said ""so"", twice",s-1,Partially Accurate,62.5,ann,random,x',
        "",
        ",,,,,,",
        ",s-2,,10,,Picked,",
        ",s-3,unknown,,,,",
        encoding="utf-8-sig",
    )

    file = read_labels(path)
    assert file.labels == [
        Label("s-1", "partially_accurate", 62.5, "ann"),
        Label("s-2", number=10.0, is_random=False),
        Label("s-3"),
    ]
    assert [label.is_decided for label in file.labels] == [True, True, False]
    assert file.unread_columns == ("Note", "extra")


def test_an_outcome_may_be_the_id_of_a_band(tmp_path: Path) -> None:
    path = write(tmp_path, "session_id,outcome", "s-1,50-74", "s-2,solid")

    assert [label.outcome for label in read_labels(path, band_ids={"solid"}).labels] == ["50-74", "solid"]
    with pytest.raises(ConfigurationError, match="line 3: 'solid' is not an outcome"):
        read_labels(path)


WRONG_FILES = {
    "empty": ((), "labels.csv is empty; its first line must name the columns"),
    "no-session-column": (("id,outcome", "s-1,wrong"), "no column 'session_id' \\(it has: id, outcome\\)"),
    "nothing-said": (("session_id,basis", "s-1,x"), "neither a column 'outcome' nor 'number'"),
    "column-twice": (("session_id,outcome,Outcome", "s-1,wrong,wrong"), "two columns 'outcome'"),
    "no-session-id": (("session_id,outcome", "s-1,wrong", "../etc,wrong"), "line 3: '../etc' is not a session id"),
    "misspelt-outcome": (
        ("session_id,outcome", "s-1,corect"),
        "line 2: 'corect' is not an outcome; did you mean 'correct'?",
    ),
    "strange-outcome": (("session_id,outcome", "s-1,7"), "line 2: '7' is not an outcome \\(known: "),
    "no-number": (("session_id,number", "s-1,high"), "line 2: 'high' is not a number"),
    "number-over-100": (("session_id,number", "s-1,50", "s-2,101"), "line 3: the number is 101; it must be 0-100"),
    "not-a-number": (("session_id,number", "s-1,nan"), "line 2: the number is nan; it must be 0-100"),
    "share-for-a-number": (
        ("session_id,number", "s-1,1", "s-2,0.5"),
        "every value of the column 'number' is between 0",
    ),
    "unknown-selection": (
        ("session_id,outcome,selection", "s-1,wrong,all"),
        "line 2: the selection is 'all'; it can be",
    ),
    "too-few-fields": (("session_id,outcome", "s-1"), "line 2: it has 1 fields, the header has 2"),
    "too-many-fields": (("session_id,outcome", "s-1,wrong,really"), "line 2: it has 3 fields, the header has 2"),
    "labelled-twice": (
        ("session_id,outcome,basis", "s-1,wrong,ann", "s-1,wrong,ben", "s-1,correct,ann"),
        "line 4: the same labeller labels this session in line 2 already",
    ),
    "open-quotation": (("session_id,outcome", 's-1,"wrong'), "line 2: unexpected end of data"),
}


def test_invalid_files_are_refused_with_line_and_reason(tmp_path: Path) -> None:
    for lines, reason in WRONG_FILES.values():
        with pytest.raises(ConfigurationError, match=reason.replace("?", r"\?")) as caught:
            read_labels(write(tmp_path, *lines))
        assert "labels.csv" in str(caught.value)
    # Only values that all look like shares of one are refused; zeros do not.
    assert read_labels(write(tmp_path, "session_id,number", "s-1,0")).labels[0].number == 0


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent\.csv: No such file"):
        read_labels(tmp_path / "absent.csv")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        read_labels(write(tmp_path, "session_id,outcome,note", "s-1,wrong,für", encoding="latin-1"))
