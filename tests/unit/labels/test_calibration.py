"""Reading labels and comparing them with scores."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tables import table
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.labels.calibration import Label, LabelledScore, TrustCard, band_of_label, calibrate
from tarsy_scoring.labels.label_file import read_labels
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


def one(labels: Sequence[Label], scores: Sequence[LabelledScore], bands: Sequence[Band] = DEFAULT_BANDS) -> TrustCard:
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
    assert (found.unmatched, found.unplaced, found.disputed) == (2, 0, 0)


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
    assert [c.unmatched for c in found] == [0, 1, 1]
    assert [c.bands for c in found] == [DEFAULT_BANDS, DEFAULT_BANDS, OUTCOME_BANDS]
    assert found[0].confusion.agreeing == 2


def test_all_labels_count_and_each_source_has_a_kappa() -> None:
    """A session that anybody labelled at random is a random one."""
    labels, scores = many(("correct", 90, 15), ("wrong", 20, 15), ("correct", 20, 3))
    hard = [Label(f"hard-{i}", "correct", selection="picked") for i in range(40)]
    twice = [Label("s-0", "correct", selection="picked")]

    found = one([*labels, *hard, *twice], [*scores, *(score(label.session_id, 0) for label in hard)])

    assert found.matched == found.kappa.n == 73
    assert {source: kappa.n for source, kappa in found.by_source.items()} == {"random": 33, "picked": 40}
    assert found.by_source["random"] == one(labels, scores).kappa


def test_numbers_of_labels_say_how_mild_the_judge_is() -> None:
    labels = [*(Label("s-1", number=n) for n in (40, 60, 90)), Label("s-2", "wrong")]

    found = one(labels, [score("s-1", 70), score("s-2", 20)])

    assert found.mean_difference == 10


def test_several_labels_of_a_session_make_one_label() -> None:
    labels = [
        *(Label("s-1", "wrong") for _ in range(2)),
        *(Label("s-2", what) for what in ("correct", "partial")),
        *(Label("s-3", what) for what in ("correct", "correct", "wrong")),
    ]

    found = one(labels, [score("s-1", 20), score("s-2", 60), score("s-3", 90)])

    assert (found.matched, found.disputed) == (3, 2)
    assert found.confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def test_the_outcome_that_the_judge_stated_is_its_band() -> None:
    labels = [Label("s-1", "wrong"), Label("s-2", "correct"), Label("s-3", "partial")]
    scores = [score("s-1", 70, judge_outcome="wrong"), score("s-2", 70), score("s-3", 40, judge_outcome="splendid")]

    assert one(labels, scores, OUTCOME_BANDS).confusion.counts == ((1, 0, 0), (0, 1, 0), (0, 0, 1))


def test_sessions_without_a_band_are_not_counted() -> None:
    gap = bands_of({"bad": (0, 40), "good": (60, 100)})
    labels = [Label("s-1", "partial"), Label("s-2", "correct"), Label("s-3", "wrong")]

    found = one(labels, [score("s-1", 20), score("s-2", 50), score("s-3", 10)], gap)

    assert (found.matched, found.unplaced) == (1, 2)


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
        "Note, Session_ID ,outcome,number,selection,extra",
        '"said ""so"", twice",s-1,Partially Accurate,62.5,random,x',
        "",
        ",s-2,,10,Picked,",
        ",s-3,unknown,,,",
        encoding="utf-8-sig",
    )

    labels = read_labels(path)
    assert labels == [
        Label("s-1", "partially_accurate", 62.5),
        Label("s-2", number=10.0, selection="picked"),
        Label("s-3"),
    ]
    assert [label.is_decided for label in labels] == [True, True, False]


def test_an_outcome_may_be_the_id_of_a_band(tmp_path: Path) -> None:
    path = write(tmp_path, "session_id,outcome", "s-1,50-74", "s-2,solid")

    assert [label.outcome for label in read_labels(path, band_ids={"solid"})] == ["50-74", "solid"]
    with pytest.raises(ConfigurationError, match="line 3: 'solid' is not an outcome"):
        read_labels(path)


@table
def test_invalid_files_are_refused_with_line_and_reason(lines: list[str], reason: str, *, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=reason.replace("?", r"\?")) as caught:
        read_labels(write(tmp_path, *lines))
    assert "labels.csv" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*absent\.csv: No such file"):
        read_labels(tmp_path / "absent.csv")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        read_labels(write(tmp_path, "session_id,outcome,note", "s-1,wrong,für", encoding="latin-1"))
