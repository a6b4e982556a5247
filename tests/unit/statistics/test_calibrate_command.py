"""`calibrate` without a database: score documents from a file, a report for people and one for programs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tarsy_scoring.commands.calibrate import calibrate
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.criteria import load_criteria

METHODOLOGY = "investigation-methodology"
RECORDED_LABELS = Path(__file__).resolve().parents[3] / ".." / "shared" / "session-labels.csv"

Run = Callable[..., Result]


def document(session_id: str, total: int | None, **changes: Any) -> dict[str, Any]:
    """What is read of a score document, and a key that is not."""
    return {
        "session_id": session_id,
        "status": "completed",
        "purpose": "production",
        "completed_at": "2026-01-31T12:00:00Z",
        "total_score": total,
        "criteria": METHODOLOGY,
        "criteria_hash": "a" * 64,
        "judge_fingerprint": "f" * 64,
        "judge_outcome": None,
        "turns": [{"kind": "analysis"}],
    } | changes


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Call the command with these labels and these score documents."""

    def call(
        labels: str, *documents: dict[str, Any], arguments: tuple[str, ...] = (), indent: int | None = None
    ) -> Result:
        (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
        lines = "\n".join(json.dumps(d, indent=indent) for d in documents)
        (tmp_path / "scores.jsonl").write_text(lines, encoding="utf-8")
        files = [str(tmp_path / "labels.csv"), "--scores", str(tmp_path / "scores.jsonl")]
        return CliRunner().invoke(calibrate, [*files, *arguments])

    return call


LABELS = "session_id,outcome\ns-1,wrong\ns-2,correct\ns-3,partial\ns-4,unknown\n"


def test_a_program_gets_one_document(run: Run) -> None:
    ended = run(LABELS, document("s-1", 10), document("s-2", 80), document("s-3", 90), arguments=("--json",))

    assert ended.exit_code == 0
    told = json.loads(ended.output)
    assert told["labels"] == {"read": 4, "undecided": 1, "picked": 0}
    [found] = told["calibrations"]
    assert (found["criteria"], found["criteria_hash"], found["judge_fingerprint"]) == (METHODOLOGY, "a" * 64, "f" * 64)
    assert (found["matched"], found["unmatched"], found["spearman_over"]) == (3, [], "bands")
    assert found["confusion"]["counts"] == [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert found["kappa"]["value"] == pytest.approx(0.8)  # 1 - 3 · 1 / 15, as worked by hand
    assert (found["kappa"]["low"], found["kappa"]["reason"]) == (
        None,
        "3 sessions are too few for an interval; it takes 20",
    )
    assert (found["needed"]["total"], found["still_needed"], found["is_supposed"]) == (279, 276, True)


def test_people_get_sentences_and_tables(run: Run) -> None:
    ended = run(LABELS + "s-5,wrong\n", document("s-1", 10), document("s-2", 80), document("s-3", 90))

    assert ended.exit_code == 0
    for shown in ("5 labels", "1 of them undecided", METHODOLOGY, "weighted kappa", "unknown"):
        assert shown in ended.output
    assert "labelled, without a score of this judge: 1" in ended.output
    [row] = [line for line in ended.output.splitlines() if line.startswith("│ 75-100")]
    assert row.strip("│ ").replace("│", " ").split() == ["75-100", "0", "0", "1"]


def test_nothing_matched_ends_with_one(run: Run) -> None:
    ended = run(LABELS, document("s-9", 10), arguments=("--json",))

    assert ended.exit_code == 1
    assert json.loads(ended.output)["calibrations"][0]["unmatched"] == ["s-1", "s-2", "s-3"]
    assert run(LABELS).exit_code == 1
    assert "no labelled session has a completed score" in run(LABELS).output


def test_only_completed_production_scores_with_a_total_count(run: Run) -> None:
    ended = run(
        LABELS,
        document("s-1", None, status="failed", criteria_hash=None, judge_fingerprint=None, completed_at=None),
        document("s-2", None),
        document("s-3", 60),
        document("s-3", 90, completed_at="2026-01-31T13:30:00+02:00"),  # half an hour before the one above
        document("s-3", 10, purpose="shadow", completed_at="2026-02-01T00:00:00Z"),
        document("s-3", 10, status="failed", completed_at="2026-02-01T00:00:00Z"),
        arguments=("--json",),
    )

    [found] = json.loads(ended.output)["calibrations"]
    assert (found["matched"], found["unmatched"]) == (1, ["s-1", "s-2"])
    assert found["confusion"]["counts"][1] == [0, 1, 0]


def test_one_criteria_can_be_asked_for(run: Run) -> None:
    scores = document("s-1", 10), document("s-1", 10, criteria="other", criteria_hash="b" * 64)

    both, alone = (
        run(LABELS, *scores, arguments=("--json",)),
        run(LABELS, *scores, arguments=("--json", "--criteria", "other")),
    )

    assert [c["criteria"] for c in json.loads(both.output)["calibrations"]] == [METHODOLOGY, "other"]
    assert [c["criteria"] for c in json.loads(alone.output)["calibrations"]] == ["other"]


def test_criteria_that_nobody_has_are_asked_wrongly(run: Run) -> None:
    documents = document("s-1", 10, criteria="other"), document("s-2", None, criteria="without-a-total")

    typo = run(LABELS, *documents, arguments=("--criteria", "othr"))

    assert (typo.exit_code, typo.stdout) == (2, "")
    told = " ".join(typo.stderr.split())
    assert "no criteria are called 'othr'" in told
    assert METHODOLOGY in told
    assert "other" in told.replace("othr", "")


def test_known_criteria_without_a_score_are_no_mistake(run: Run) -> None:
    assert run(LABELS, document("s-1", 10), arguments=("--criteria", "cli-tool-use")).exit_code == 1


@pytest.fixture
def outcome_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Criteria of the operator's own, with bands; gives their hash."""
    folder = tmp_path / "criteria"
    folder.mkdir()
    written = (
        "name: outcome-first\nsystem_prompt: judge\n"
        "prompt: '{{ALERT_DATA}} {{SESSION_CONVERSATION}} {{OUTPUT_SCHEMA}}'\n"
        "follow_up_prompt: tools\nreminder_prompt: total\nbands: {solid: [60, 100], shaky: [35, 59], bad: [0, 34]}\n"
    )
    (folder / "own.yaml").write_text(written, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(json.dumps({"criteria_dirs": [str(folder)]}), encoding="utf-8")
    monkeypatch.setenv("SCORING_CONFIG", str(tmp_path / "config.yaml"))
    return load_criteria([folder]).get("outcome-first").criteria_hash


@pytest.mark.parametrize(
    ("name", "is_current"),
    [
        pytest.param("outcome-first", True, id="current"),
        pytest.param("outcome-first", False, id="older-version"),
        pytest.param("renamed", True, id="other-name"),
    ],
)
def test_bands_are_those_of_the_criteria(run: Run, outcome_first: str, name: str, is_current: bool) -> None:
    of = {"criteria": name, "criteria_hash": outcome_first if is_current else "0" * 64}
    scores = document("s-1", 70, judge_outcome="solid", **of), document("s-2", 50, **of)

    ended = run("session_id,outcome\ns-1,solid\ns-2,incorrect\n", *scores, arguments=("--json",))

    [found] = json.loads(ended.output)["calibrations"]
    assert found["confusion"]["categories"] == ["bad", "shaky", "solid"]
    assert found["confusion"]["counts"] == [[0, 1, 0], [0, 0, 0], [0, 0, 1]]


@pytest.mark.usefixtures("outcome_first")
def test_a_label_may_name_a_band_of_criteria_that_scored_nothing(run: Run) -> None:
    ended = run("session_id,outcome\ns-1,solid\n", document("s-1", 70), arguments=("--json",))

    assert ended.exit_code == 1
    assert json.loads(ended.output)["calibrations"][0]["unplaced"] == ["s-1"]


def test_columns_can_be_named(run: Run) -> None:
    ended = run(
        "id,verdict\ns-1,wrong\n",
        document("s-1", 10),
        arguments=("--json", "--column", "session_id=id", "--column", "outcome=verdict"),
    )

    assert json.loads(ended.output)["calibrations"][0]["matched"] == 1


def test_an_invalid_column_ends_with_two(run: Run) -> None:
    for argument in ("outcome", "outcome=", "verdict=outcome", "=x"):
        ended = run(LABELS, document("s-1", 10), arguments=("--column", argument))
        assert ended.exit_code == 2, argument
        assert "session_id, outcome, number" in ended.output


WRONG_SCORES = {
    "not-json": ("\n{\n  oops\n", "scores.jsonl, line 3: not JSON"),
    "no-object": ("[1]", "line 1: not a score document as `score FILE --json` prints it"),
    "another-object": ('{"env": {}}', "line 1: not a score document .*: session_id: Field required"),
    "total-out-of-range": (json.dumps(document("s-1", 101)), "line 1: not a score document .*: total_score: "),
    "second-of-two": (f"{json.dumps(document('s-1', 1))}\n\n{{}}", "line 3: not a score document"),
    "after-an-indented-one": (f"{json.dumps(document('s-1', 1), indent=1)}\n{{}}", "line 17: not a score document"),
    "not-utf-8": (b"\xff\xfe{", "scores.jsonl: it is not UTF-8"),
}


def test_scores_that_cannot_be_read_are_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(LABELS, encoding="utf-8")
    files = [str(tmp_path / "labels.csv"), "--scores", str(tmp_path / "scores.jsonl")]
    for content, reason in WRONG_SCORES.values():
        (tmp_path / "scores.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ConfigurationError, match=reason):
            CliRunner().invoke(calibrate, files, catch_exceptions=False)


def test_without_scores_the_database_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(LABELS, encoding="utf-8")

    with pytest.raises(ConfigurationError, match="SCORING_DATABASE_URL is not set"):
        CliRunner().invoke(calibrate, [str(tmp_path / "labels.csv")], catch_exceptions=False)


@pytest.mark.skipif(not RECORDED_LABELS.exists(), reason="the recorded labels are not beside this repository")
def test_the_recorded_labels_are_an_example_of_its_input(run: Run) -> None:
    labels = RECORDED_LABELS.read_text(encoding="utf-8")
    decided = [line.split(",") for line in labels.splitlines()[1:] if ",unknown," not in line]
    totals = {True: (80, 65, 30), False: (20, 40, 60)}
    scores = [document(cells[0], totals[cells[2] == "correct"][i % 3]) for i, cells in enumerate(decided)]

    ended = run(labels, *scores, arguments=("--json",))

    assert ended.exit_code == 0
    told = json.loads(ended.output)
    assert told["labels"] == {"read": 91, "undecided": 39, "picked": 0}
    [found] = told["calibrations"]
    assert (found["matched"], found["unmatched"]) == (52, [])
    assert found["kappa"]["low"] < found["kappa"]["value"] < found["kappa"]["high"]
    assert 0 < found["still_needed"] == found["needed"]["total"] - 52
    assert "The judge uses '50-74', which no label does" in found["meaning"]
