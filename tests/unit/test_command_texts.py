"""The text that commands print from their templates, out of the documents that scripts read."""

import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tarsy_scoring.commands import rescore
from tarsy_scoring.commands.score import score
from tarsy_scoring.commands.shared import print_text
from tarsy_scoring.doctor.checks import CheckResult
from tarsy_scoring.labels.calibration import Label, LabelledScore, calibrate
from tarsy_scoring.queue.inbox import Order
from tarsy_scoring.queue.selection import Amount, CostEstimate
from tarsy_scoring.scores.bands import DEFAULT_BANDS
from tarsy_scoring.scores.fields import no_results
from tarsy_scoring.studies.commands import compare, consistency
from tarsy_scoring.studies.commands.judging import OrderedJudgement
from tarsy_scoring.studies.comparison import ScoredSession, compare_versions
from tarsy_scoring.studies.drift_report import STATES

EXAMPLES = Path(__file__).parents[2] / "service" / "tarsy_scoring_lab" / "examples"


def judgement(session_id: str, total: int | None, status: str = "completed", **changes: Any) -> OrderedJudgement:
    fields: dict[str, Any] = dict.fromkeys(OrderedJudgement.__dataclass_fields__)
    stated = {"session_id": session_id, "status": status, "total_score": total, "flags": [], "attempt": 1}
    bound = {"criteria": "investigation-outcome", "criteria_hash": "c" * 64, "score_id": uuid.uuid4()}
    return OrderedJudgement(**fields | stated | bound | {"bands": {"good": [60, 100], "bad": [0, 59]}} | changes)


def shown(capsys: pytest.CaptureFixture[str], template: str, document: dict[str, Any]) -> list[str]:
    is_study = template in ("anchors.txt", "consistency.txt", "criteria_pairs.txt", "judge_bench.txt", "versions.txt")
    print_text(template, document, room="studies.commands" if is_study else "commands")
    return capsys.readouterr().out.splitlines()


def test_doctor_prints_each_line_of_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [CheckResult("settings", "failed", "one\ntwo\x1b[2J", "first\nsecond"), CheckResult("clock", "ok", "")]

    lines = shown(capsys, "doctor.txt", {"checks": checks})

    assert [line.split(maxsplit=2)[2:] for line in lines[:1]] == [["one"]]
    assert [line.strip() for line in lines[1:4]] == ["two [2J", "-> first", "-> second"]
    assert lines[4].split() == ["ok", "clock"]


def test_score_prints_interaction_and_findings() -> None:
    ended = CliRunner().invoke(score, [str(EXAMPLES / "demo-log-tool-loop.json"), "--no-judge"])
    lines = ended.stdout.splitlines()
    assert lines[0] == "demo-log-tool-loop  no judge"
    assert lines[1].startswith("interaction: 1")
    assert "worked at the first try" in lines[1]
    assert len(lines) > 2
    assert all(line.startswith("  ") for line in lines[2:])


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "second opinion of spare: 31/100, wrong, disagrees"),
        (
            {"total_score": None, "outcome": None, "agrees": None, "reason": "budget"},
            "second opinion of spare: not had, budget",
        ),
    ],
    ids=["disagrees", "not-had"],
)
def test_score_prints_the_outcome_and_the_second_opinion(
    capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: str
) -> None:
    second = {"provider": "spare", "total_score": 31, "outcome": "wrong", "agrees": False, "reason": None} | changes
    document = no_results() | {"status": "completed", "session_id": "s", "interaction": {"total_commands": 0}}

    document |= {"total_score": 62, "judge_outcome": "correct", "second_opinion": second}
    assert shown(capsys, "score.txt", document) == ["s  62/100, correct", line]


def test_consistency_prints_totals_spread_and_flips(capsys: pytest.CaptureFixture[str]) -> None:
    judgements = [judgement("s", 70), judgement("s", 50), judgement("s", None, "failed", error_kind="refused")]
    document = consistency.document_of(uuid.uuid4(), judgements) | {"cost_in_words": "unknown"}
    lines = shown(capsys, "consistency.txt", document)
    assert lines[:3] == [
        "s under investigation-outcome cccccccccccc: 3 judgements",
        "totals              50 70",
        "spread              20 (50 to 70)",
    ]
    assert "band flips          100% of pairs" in lines
    assert lines[-2:] == ["cost                unknown", "no total: refused"]
    unbound = {"criteria_hash": None, "cost_in_words": "unknown", "flags": {"ungrounded": 2, "cut": 1}}
    assert shown(capsys, "consistency.txt", document | unbound)[0].endswith(
        "under investigation-outcome no hash: 3 judgements"
    )
    assert "flags               ungrounded 2, cut 1" in shown(capsys, "consistency.txt", document | unbound)
    assert "spread              unknown: " in "\n".join(
        shown(capsys, "consistency.txt", consistency.document_of(uuid.uuid4(), judgements[2:]) | {"cost_in_words": ""})
    )


def test_pairs_of_criteria_are_printed_with_their_differences(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("a", "b")
    judgements = {
        Order(session, "shadow", name): judgement(session, total, criteria=name)
        for session, totals in {"s-1": (50, 70), "s-2": (61, 66)}.items()
        for name, total in zip(names, totals, strict=True)
    }
    judgements[Order("s-3", "shadow", "a")] = judgement("s-3", None, "in_progress")
    judgements[Order("s-3", "shadow", "b")] = judgement("s-3", None, "failed", error_kind="refused")
    document = compare.document_of(uuid.uuid4(), names, compare.pairs_of(judgements, names))
    lines = shown(capsys, "criteria_pairs.txt", document | {"cost_in_words": "1.00 USD"})
    assert lines[:3] == [
        "s-1  a: 50 bad  b: 70 good  difference +20",
        "s-2  a: 61 good  b: 66 good  difference +5",
        "s-3  a: in progress  b: refused",
    ]
    assert lines[3].startswith("b minus a: mean +12.5 over 2 of 3 sessions, from +5 to +20, standard deviation 10.6")
    assert lines[4].startswith("95 % interval of the mean: ")
    assert lines[5] == "cost: 1.00 USD"


def test_versions_are_printed_as_a_table_with_a_star_at_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    sessions = [
        ScoredSession(value, "k", "alert", total, None, None, (), None)
        for value, totals in {"v1": range(40, 60), "v\n2": range(60, 80)}.items()
        for total in totals
    ]
    comparison = compare_versions(sessions, ("v1", "v\n2"))
    document = {"label": "guidance"} | asdict(comparison)
    compare.print_versions(document)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "guidance: v 2 (20 sessions) minus v1 (20 sessions)"
    assert lines[1].split() == ["metric", "v1", "v", "2", "difference", "95", "%", "interval", "shown"]
    [total] = [line.split() for line in lines if line.startswith("total_score ")]
    assert [*total[:6], *total[-2:]] == ["total_score", "49.5", "(n=20)", "69.5", "(n=20)", "+20.0", "*", "higher"]
    assert [line.split()[0] for line in lines[2:6]] == [*compare.MAIN_METRICS]
    assert lines[6].startswith("* shown, allowing for 8 metrics; ")
    assert lines[7].startswith("without a star: retry_rate, ")

    of_rate = next(m for m in document["metrics"] if m["metric"] == "retry_rate")
    of_rate["verdict"] = "lower"
    of_rate["difference"] = document["metrics"][0]["difference"]
    compare.print_versions(document)
    assert any(
        line.startswith("retry_rate ") and line.endswith("* lower") for line in capsys.readouterr().out.splitlines()
    )


def test_calibration_prints_kappa_and_the_confusion_table(capsys: pytest.CaptureFixture[str]) -> None:
    labels = [Label(f"s-{i}", band, None) for i, band in enumerate(("wrong", "correct", "partial"))]
    scores = [LabelledScore(f"s-{i}", total, "m", "a" * 64, "f" * 64) for i, total in enumerate((10, 80, 90))]
    found = calibrate(labels, scores, {"a" * 64: DEFAULT_BANDS})
    document = {"labels": {"read": 3, "undecided": 0}, "calibrations": [asdict(c) for c in found]}
    lines = shown(capsys, "calibration.txt", document)
    assert lines[:3] == ["3 labels, 0 of them undecided", "", f"m  {'a' * 12}  judge {'f' * 12}"]
    assert any(line.startswith("  weighted kappa: 0.80; 3 labels are too few") for line in lines)
    assert [line.split() for line in lines if line.startswith("75-100")] == [["75-100", "0", "0", "1"]]
    assert shown(capsys, "calibration.txt", document | {"calibrations": []})[1] == (
        "no labelled session has a completed score"
    )


def test_estimate_prints_the_source_of_each_amount(capsys: pytest.CaptureFixture[str]) -> None:
    chains = {None: 1, "kubernetes": 3}
    rescore.show_estimate(CostEstimate(4, chains, Amount(1234.5, 2, 1, 1), Amount(None, 0, 0, 4)))
    rescore.show_estimate(CostEstimate(0, {}, Amount(None, 0, 0, 0), Amount(0.0, 0, 0, 0)))
    assert capsys.readouterr().out.splitlines() == [
        "4 sessions would be scored: 1 of no known chain, 3 of kubernetes",
        "  tokens: about 1,234 (2 as their earlier scores, 1 as their chain on average, 1 unknown and not counted)",
        "  cost: unknown",
        "0 sessions would be scored",
    ]


def test_anchors_are_printed_with_state_and_judges(capsys: pytest.CaptureFixture[str]) -> None:
    anchor = {"session_id": "s-1", "chain_id": None, "alert_type": "P\nod", "judgements": 1, "error_kind": "refused"}
    judges = [{"chain_id": "k", "fingerprint": "f" * 64, "criteria": "m"}]
    document = {"anchors": [anchor | {"state": "given_up"}], "judges": judges, "states": STATES}
    assert shown(capsys, "anchors.txt", document) == [
        "s-1  no chain  P od  1 judgement  given up after several tries (refused)",
        "judge of k: ffffffffffff under m",
    ]


def test_no_width_of_a_terminal_cuts_ids_and_times(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    session, topic, time = "s" * 128, "t" * 100, "2026-11-22T13:04:05.123456Z"
    letter = {"place": "0:123456789", "failed_at": time, "error": "not_json", "error_message": "m" * 200}
    letter |= {
        "original_topic": topic,
        "original_partition": 2,
        "original_offset": 123456789,
        "replayed_at": time,
        "state": "replayed",
    }
    letters = "\n".join(shown(capsys, "dead_letters.txt", {"letters": [letter]}))
    assert all(whole in letters for whole in ("0:123456789", time, f"{topic} 2:123456789"))
    anchor = {"session_id": session, "chain_id": None, "alert_type": None, "judgements": 1, "state": "judged"}
    [line] = shown(capsys, "anchors.txt", {"anchors": [anchor], "judges": [], "states": STATES})
    assert line.startswith(f"{session}  no chain  ")


def test_dead_letters_are_printed_with_their_origin(capsys: pytest.CaptureFixture[str]) -> None:
    letter = {
        "place": "0:1",
        "failed_at": "2026",
        "error": "not_json",
        "error_message": "x\ny",
        "replayed_at": None,
        "state": "open",
    }
    replayed = {"replayed_at": "2027", "state": "open"}
    origin = {"original_topic": "t", "original_partition": 2, "original_offset": 3}
    nowhere = dict.fromkeys(origin)
    assert shown(capsys, "dead_letters.txt", {"letters": [letter | origin | replayed, letter | nowhere]}) == [
        "0:1  2026  not_json: x y  from t 2:3  replayed 2027  open",
        "0:1  2026  not_json: x y  from an unknown topic  open",
    ]
    assert shown(capsys, "dead_letters.txt", {"letters": []}) == ["no dead letters"]
