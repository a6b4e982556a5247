"""`judge-bench`: every judgement is asked for once, and what it could not judge is shown."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scripted import answer
from tarsy_scoring.errors import ConfigurationError, JudgeUnavailable
from tarsy_scoring.judge.verdict import Ask, Question, Turn
from tarsy_scoring.studies.bench import Job
from tarsy_scoring.studies.commands import judge_bench as command

PROVIDER = {
    "base_url": "http://127.0.0.1:9/v1",
    "api_key_env": None,
    "model": "reader-1",
    "prices_usd_per_million_tokens": {"input": 1, "output": 10},
}
CONFIG: dict[str, Any] = {
    "providers": {"main": PROVIDER, "other": PROVIDER | {"model": "reader-2"}},
    "defaults": {"providers": ["main"]},
}
TOTALS = {"right-1": 80, "right-2": 40, "wrong-1": 20, "wrong-2": 40}
LABELS = Path(__file__).with_suffix(".csv").read_text("utf-8")


class Reader:
    """Stands in for the providers, away after so many answers: answers with the total of the session."""

    def __init__(self, away_after: int = 10**6, **changes: Any) -> None:
        self.asked: list[tuple[str, str, str, int, str]] = []
        self.away_after = away_after
        self.changes = changes

    def ask_of(self, job: Job) -> Ask:
        async def ask(question: Question) -> Turn:
            if len(self.asked) >= self.away_after:
                raise JudgeUnavailable("the reader is away")
            session = job.timeline.session_id
            self.asked.append((session, job.criteria.name, job.provider, job.sample, question.kind))
            total = TOTALS[session]
            outcome = "correct" if total >= 60 else "partial" if total >= 35 else "wrong"
            text = "none" if question.kind == "missing_tools" else f"As E2 shows.\n\nOutcome: {outcome}\n\n{total}"
            turn = replace(answer(text, cost_usd=0.25, latency_ms=1500, provider=job.provider), kind=question.kind)
            return replace(turn, **self.changes)

        return ask


def session_file(folder: Path, session_id: str, **fields: Any) -> None:
    event = {"event_type": "llm_thinking", "content": "look"}
    execution = {"execution_id": "x1", "agent_name": "a", "events": [event]}
    stage = {"stage_id": "s1", "stage_type": "investigation", "executions": [execution]}
    session = {"session_id": session_id, "status": "completed", "alert_data": session_id, "stages": [stage]}
    (folder / f"{session_id}.json").write_text(json.dumps(session | fields), encoding="utf-8")


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls `judge-bench` with labels, sessions and a cache of this test, and a reader in place of the providers."""
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    for session_id in TOTALS:
        session_file(sessions, session_id)
    (tmp_path / "scoring.yaml").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.setenv("SCORING_CONFIG", str(tmp_path / "scoring.yaml"))

    def call_it(reader: Reader, *arguments: str, labels: str = LABELS, stdin: str = "") -> Result:
        monkeypatch.setattr(command, "live_judges", lambda *_: nullcontext(reader.ask_of))
        file = tmp_path / "labels.csv"
        file.write_text(labels, encoding="utf-8")
        where = ("--sessions", str(sessions), "--cache", str(tmp_path / "cache"))
        return CliRunner().invoke(
            command.judge_bench, [str(file), "--criteria", "investigation", *arguments, *where], input=stdin
        )

    return call_it


def test_a_judgement_is_asked_for_once(run: Run) -> None:
    """The second run replays the turns with their nonce, and shows the same."""
    first, second = Reader(), Reader()
    made = run(first, "--yes", "--json")
    again = run(second, "--json")

    assert (made.exit_code, again.exit_code) == (0, 0), made.output + again.output
    assert sorted({session for session, *_ in first.asked}) == sorted(TOTALS)
    assert second.asked == []
    before, after = json.loads(made.stdout), json.loads(again.stdout)
    assert before.pop("judgements") == {"recorded": 0, "asked": 4, "outstanding": 0}
    assert after.pop("judgements") == {"recorded": 4, "asked": 0, "outstanding": 0}
    assert before == after


def test_another_sample_provider_or_criteria_is_another_judgement(run: Run) -> None:
    run(Reader(), "--yes")
    reader = Reader()
    run(reader, "investigation-methodology", "--samples", "2", "--providers", "main", "other", "--yes")
    asked = {question[1:4] for question in reader.asked if question[4] == "analysis"}
    every = {
        (c, p, s) for c in ("investigation", "investigation-methodology") for p in ("main", "other") for s in (1, 2)
    }
    assert asked == every - {("investigation", "main", 1)}


def test_a_stopped_run_continues_with_the_turn_that_is_missing(run: Run) -> None:
    stopped, later = Reader(away_after=3), Reader()
    ended = run(stopped, "--yes", "--json")
    resumed = run(later, "--yes", "--json")

    assert ended.exit_code == 1
    assert json.loads(ended.stdout)["judgements"]["outstanding"] > 0
    assert "asks only for these again" in ended.stderr
    assert (resumed.exit_code, json.loads(resumed.stdout)["judgements"]["outstanding"]) == (0, 0)
    assert len({*stopped.asked, *later.asked}) == len(stopped.asked) + len(later.asked) == 8


def test_sessions_with_the_same_content_are_judged_once(run: Run, tmp_path: Path) -> None:
    for session_id in TOTALS:
        session_file(tmp_path / "sessions", session_id, alert_data="alert")
    reader = Reader()
    assert run(reader, "--yes").exit_code == 0
    assert [question[4] for question in reader.asked] == ["analysis", "missing_tools"]


def test_a_refused_judgement_has_no_score_and_is_not_asked_for_again(run: Run) -> None:
    ended = run(Reader(refusal="I will not"), "--yes", "--json")
    again = Reader()
    replayed = run(again, "--json")

    [found] = json.loads(ended.stdout)["arms"]
    assert (ended.exit_code, replayed.exit_code, again.asked) == (1, 1, [])
    assert (found["n_unscored"], found["auc"]) == (4, 0.0)
    assert json.loads(ended.stdout)["misranked"][0]["reason"].startswith("refused: ")


def test_a_session_with_nothing_to_judge_is_left_out(run: Run, tmp_path: Path) -> None:
    session_file(tmp_path / "sessions", "right-1", stages=[])
    ended = run(Reader(), "--yes", "--json")
    document = json.loads(ended.stdout)

    assert (document["labels"]["judged"], document["labels"]["left_out"]["nothing_to_judge"]) == (3, 1)
    [found] = document["arms"]
    assert (ended.exit_code, found["n_right"], found["n_unscored"]) == (0, 1, 0)
    assert all(one["session_id"] != "right-1" for one in document["misranked"])


def test_a_session_that_cannot_be_read_loses_its_pairs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "sessions" / "right-1.json").write_text("{", encoding="utf-8")
    document = json.loads(run(Reader(), "--yes", "--json").stdout)

    assert (document["arms"][0]["n_unscored"], document["arms"][0]["auc"]) == (1, 1.5 / 4)
    wrongly = document["misranked"][0]
    assert (wrongly["session_id"], wrongly["total"], wrongly["lost"], wrongly["pairs"]) == ("right-1", None, 2.0, 2)


def test_the_report_holds_every_figure(run: Run) -> None:
    """By hand: right 80 and 40, wrong 20 and 40: three pairs in order and a tie, 3.5 of 4."""
    document = json.loads(run(Reader(), "--samples", "2", "--yes", "--json").stdout)
    [found] = document["arms"]
    assert document["labels"] == {
        "judged": 4,
        "incidents": 4,
        "left_out": {"partial": 1, "unknown": 1, "nothing_to_judge": 0},
    }
    assert 0 <= found.pop("auc_low") < found.pop("auc") == 0.875 < found.pop("auc_high") <= 1
    assert found.pop("sd") == pytest.approx(25.17, abs=0.01)
    assert found == {
        "criteria": "investigation",
        "provider": "main",
        "model": "reader-1",
        "n_right": 2,
        "n_wrong": 2,
        "mean_right": 60,
        "mean_wrong": 30,
        "lowest": 20,
        "highest": 80,
        "n_unscored": 0,
        "citations_held": 1.0,
        "cost_usd": 0.5,
        "seconds_per_score": 3.0,
    }
    assert [m["session_id"] for m in document["misranked"]] == ["right-2", "wrong-2"]


@pytest.mark.parametrize(("said", "asked"), [("y\n", 8), ("n\n", 0)])
def test_at_a_terminal_the_command_asks_first(run: Run, monkeypatch: pytest.MonkeyPatch, said: str, asked: int) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    reader = Reader()
    ended = run(reader, stdin=said)
    assert (len(reader.asked), ended.exit_code) == (asked, 0 if asked else 1)


def test_nothing_is_asked_without_consent(run: Run) -> None:
    reader = Reader()
    ended = run(reader)
    assert (ended.exit_code, reader.asked) == (2, [])
    assert "8 calls with full answers up to 0." in ended.stderr
    assert "add --yes" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "labels", "says"),
    [
        (("--providers", "nowhere"), LABELS, "no provider is called 'nowhere' (known: main, other)"),
        (("made-up",), LABELS, "no criteria are called 'made-up'"),
        ((), "session_id\nright-1\n", "has no column 'outcome'"),
        ((), "session_id,outcome\nright-1,corect\n", "line 2: 'corect' is not an outcome"),
        ((), "session_id,outcome\nright-1,correct\nright-1,wrong\n", "has an outcome already"),
        ((), "session_id,outcome\nright-1,partial\n", "of 1 label none is `correct` or `wrong`"),
        ((), "session_id,outcome\nright-1,correct\ngone-1,wrong\n", "does not have 1 of 2 labelled sessions (gone-1)"),
    ],
)
def test_wrong_use_is_refused_with_a_reason(run: Run, arguments: tuple[str, ...], labels: str, says: str) -> None:
    reader = Reader()
    ended = run(reader, *arguments, "--yes", labels=labels)
    assert says in f"{ended.stderr} {ended.exception}"
    assert ended.exit_code == 2 or isinstance(ended.exception, ConfigurationError)
    assert reader.asked == []


def test_a_broken_recording_is_named(run: Run, tmp_path: Path) -> None:
    run(Reader(), "--yes")
    for file in (tmp_path / "cache").iterdir():
        file.write_text("{", encoding="utf-8")
    error = run(Reader(), "--yes").exception
    assert isinstance(error, ConfigurationError)
    assert "delete it" in str(error)


def test_recordings_are_for_their_owner_only(run: Run, tmp_path: Path) -> None:
    run(Reader(), "--yes")
    folder = tmp_path / "cache"
    assert [path.stat().st_mode & 0o77 for path in (folder, *folder.iterdir())] == [0] * 5
