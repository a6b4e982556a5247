"""What people read of drift: words, numbers with their intervals, and what commands refuse."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_core import to_json

from tarsy_scoring.cli import cli
from tarsy_scoring.commands.anchors import show_standing
from tarsy_scoring.drift.anchors import Anchor, Standing
from tarsy_scoring.drift.detection import Finding, Situation, event_of, explain
from tarsy_scoring.drift.loop import _message
from tarsy_scoring.drift.report import DriftReport, in_points, markdown, standing_of
from tarsy_scoring.events import DriftDetected
from tarsy_scoring.signals.publisher import DRIFT_KEY
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement
from tarsy_scoring.statistics.judge_change import ChainScore, Look, Reign
from tarsy_scoring.web.pages.drift import parts_picture

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40, None, "a method")


def a_finding(**changes: Any) -> Finding:
    found = Finding(
        event_id=uuid.UUID(int=7),
        look="sessions",
        chain_id="kubernetes",
        criteria="methodology",
        criteria_hash="h",
        old_fingerprint="a" * 64,
        new_fingerprint="b" * 64,
        cause="judge",
        is_clear=True,
        judge=estimate(-8, -9.5, -6.5),
        whole=estimate(-7, -10, -4),
        agents=estimate(1, -3, 5),
        began_at=NOON,
        anchors=40,
        anchors_missing=0,
        compared_before=400,
        compared_after=300,
        meaning=["The judge changed."],
        found_at=NOON,
        is_event=True,
        published_at=None,
    )
    return replace(found, **changes)


def told(*findings: Finding) -> str:
    return markdown(DriftReport(list(findings), None, {"judged": 39, "gone": 1}, []))


def test_a_finding_in_words() -> None:
    """Cause, what may be concluded, every part with its interval, and who the judges are."""
    text = told(a_finding())

    assert "## 2026-03-10 12:00 kubernetes: the judge changed\n" in text
    assert "- The judge changed." in text
    assert "judge's part -8.0 (-9.5 to -6.5); agents' part +1.0 (-3.0 to +5.0)" in text
    assert "judge aaaaaaaaaaaa -> bbbbbbbbbbbb" in text
    assert "Anchors: 39 judged by the judge of now, 1 gone: the source no longer has it." in text


def test_a_likely_cause_is_told_as_such() -> None:
    """Not as if it were shown."""
    assert "the agents changed, probably" in told(a_finding(cause="agents", is_clear=False))
    assert "cannot be told" in told(a_finding(cause=None, is_clear=False))


def test_sessions_that_were_left_out_are_not_counted() -> None:
    """A look at anchors alone compares none."""
    assert "40 anchors, 400 sessions before and 300 after" in told(a_finding())
    assert "40 anchors, sessions left out\n" in told(a_finding(look="anchors", compared_before=0, compared_after=0))


def test_a_chain_without_a_known_judge_is_told_as_such() -> None:
    """It may have scores of yesterday, without a fingerprint."""
    text = markdown(DriftReport([], None, {"no_judge": 1}, []))

    assert "1 its chain has no scores of late under its criteria that have a fingerprint." in text


def test_events_stand_under_a_key_that_windows_keep_away_from() -> None:
    """No chain's windows may take their place."""
    key, _, _ = _message(event_of(a_finding()))

    assert DRIFT_KEY.fullmatch(key.decode())


def test_names_from_outside_stay_in_their_line() -> None:
    """A chain of several lines makes no heading of its own."""
    assert "\n# Sold" not in told(a_finding(chain_id="k\n# Sold"))


def test_without_anchors_it_says_what_is_missing() -> None:
    """Nobody should think that quiet means well."""
    text = markdown(DriftReport([], None, {}, []))

    assert "There are no anchors" in text
    assert "No look has found anything yet." in text


@pytest.mark.parametrize(
    ("part", "words"),
    [
        pytest.param(estimate(-8, -9.5, -6.5), "-8.0 (-9.5 to -6.5)", id="with-interval"),
        pytest.param(estimate(3), "+3.0, no interval", id="without-interval"),
        pytest.param(estimate(0, 0, 0), "+0.0", id="known"),
        pytest.param(estimate(None), "unknown", id="unknown"),
    ],
)
def test_a_change_in_points(part: Estimate, words: str) -> None:
    """What is not known is not a number."""
    assert in_points(part) == words


def test_the_event_says_what_it_is_about() -> None:
    """The size is that of the cause; the same finding makes the same event."""
    event = event_of(a_finding())

    told_to_others = DriftDetected.model_validate_json(to_json(event))
    assert (told_to_others.chain_id, told_to_others.meaning) == ("kubernetes", ["The judge changed."])
    assert (event["size_points"], event["interval"]) == (-8, [-9.5, -6.5])
    assert event["timestamp_us"] == int(NOON.timestamp()) * 1_000_000
    assert event == event_of(a_finding())
    assert event_of(a_finding(cause="both"))["size_points"] == -7
    assert event_of(a_finding(cause="agents"))["interval"] == [-3, 5]


def situation(
    judged_by_both: int,
    *,
    after: int = 100,
    old: str | None = "a",
    outstanding: int = 0,
    judges: int = 2,
    unknown: int = 0,
    lenders: int = 0,
) -> Situation:
    score = ChainScore(NOON, NOON, None, "b", "h", 60.0)
    reign = Reign("b", NOON if old else None, [score] * after, old, [score], judges)
    said = [AnchorJudgement(f"s-{n}", judge, 60.0, "k") for n in range(judged_by_both) for judge in "ab"]
    return Situation("k", "c", reign, said, lenders, outstanding, unknown)


@pytest.mark.parametrize(
    ("found", "says", "is_silent_about"),
    [
        pytest.param(situation(40), "40 anchors were judged by both judges.", "Without anchors", id="judged"),
        pytest.param(situation(2, outstanding=3), "2 anchors were judged by both judges, 3 are", "cannot", id="waits"),
        pytest.param(situation(0, outstanding=3), "3 are still to be", "Without anchors", id="none-judged-yet"),
        pytest.param(situation(2, outstanding=3), "waits for these, for at most 14 days", "due", id="for-anchors"),
        pytest.param(situation(40), "A look is due and is made within five minutes.", "waits", id="for-nothing"),
        pytest.param(situation(0, after=300), "made within five minutes", "waits", id="for-nothing-but-anchors"),
        pytest.param(situation(4), "looked at once", "five minutes", id="for-scores"),
        pytest.param(situation(40), "(there are 100), or after 14 days 60.", "Without", id="or-for-days"),
        pytest.param(situation(0), "Without anchors that both judged", "still to be", id="no-anchors"),
        pytest.param(situation(40, after=300), "took over at 2026-03-10 12:00 UTC", "looked at once", id="enough"),
        pytest.param(situation(40), "300 scores by the new judge (there are 100)", "Without", id="too-few-scores"),
        pytest.param(situation(0, old=None, judges=1), "One judge is in sight", "took over", id="one-judge"),
        pytest.param(situation(0, old=None, judges=3), "3 judges are in sight", "One judge", id="judges-take-turns"),
        pytest.param(
            situation(0, old=None, judges=3), "No change of judge can be told", "fingerprint", id="so-no-change"
        ),
        pytest.param(
            situation(0, old=None, judges=1, unknown=300),
            "300 scores have no fingerprint: who gave them is unknown",
            "took over",
            id="unknown-judges",
        ),
        pytest.param(situation(40, unknown=1), "1 score has no fingerprint", "One judge", id="an-unknown-judge"),
    ],
)
def test_how_things_stand_in_words(found: Situation, says: str, is_silent_about: str) -> None:
    """What the next look waits for, and nothing that does not hold."""
    stands = standing_of(found, [], NOON)

    assert says in stands.meaning
    assert is_silent_about not in stands.meaning


@pytest.mark.parametrize(
    ("found", "looked", "days", "says", "is_silent_about"),
    [
        pytest.param(situation(40), ["anchors"], 1, "(there are 100), or after", "is due", id="sessions-are-to-come"),
        pytest.param(situation(40, after=300), ["anchors"], 1, "is due", "looked at once", id="sessions-are-there"),
        pytest.param(situation(40, after=300), ["sessions"], 1, "by both judges.", "is due", id="everything-was-done"),
        pytest.param(situation(40), ["sessions"], 20, "by both judges.", "looked at once", id="it-was-done-after-days"),
        pytest.param(situation(40), ["sessions"], 1, "by both judges.", "looked at once", id="it-was-done-for-both"),
        pytest.param(situation(40), ["anchors"], 20, "is due", "looked at once", id="days-have-gone"),
        pytest.param(situation(40, after=59), ["anchors"], 20, "once there are 60", "or after", id="still-too-few"),
        pytest.param(situation(4, after=60, outstanding=3), [], 20, "3 are still to be.", "waits", id="nobody-waits"),
    ],
)
def test_a_look_is_announced_where_it_is_due(
    found: Situation, looked: list[Look], days: int, says: str, is_silent_about: str
) -> None:
    """What was looked at is not promised again."""
    stands = standing_of(found, looked, NOON + timedelta(days=days))

    assert says in stands.meaning
    assert is_silent_about not in stands.meaning


@pytest.mark.parametrize(
    ("found", "says"),
    [
        pytest.param(situation(40), None, id="its-own-anchors"),
        pytest.param(situation(0), None, id="none-of-any-chain"),
        pytest.param(situation(5, lenders=1), "as far as 2 chains can show it", id="own-and-borrowed"),
        pytest.param(situation(0, lenders=1), "not in the interval", id="of-one-other-chain"),
    ],
)
def test_whose_anchors_speak_is_said(found: Situation, says: str | None) -> None:
    """Where there are some of other chains that both judges judged."""
    lent = [
        AnchorJudgement(f"o-{n}", judge, total, "other")
        for n in range(40 * found.lenders)
        for judge, total in (("a", 50.0), ("b", 49.0 + n % 3))
    ]
    meaning = " ".join(explain(replace(found, judgements=[*found.judgements, *lent]), "sessions").meaning)

    assert ("those of other chains do, too" in meaning) == (says is not None)
    assert says is None or says in meaning


def test_own_anchors_that_speak_alone_are_said_to() -> None:
    """Where other chains differ too much to lend anything."""
    lent = [
        AnchorJudgement(f"o-{n}", judge, total, "other")
        for n in range(40)
        for judge, total in (("a", 50.0), ("b", 80.0 + n % 3))
    ]
    found = situation(10, lenders=1)

    drift = explain(replace(found, judgements=[*found.judgements, *lent]), "sessions")

    assert (drift.judge.value, drift.judge.n) == (0, 10)
    assert "10 anchors of this chain speak alone" in drift.meaning[-1]


def test_anchors_alone_do_not_miss_the_sessions_that_they_leave_out() -> None:
    """What was left out on purpose is not too few."""
    drift = explain(situation(40), "anchors")

    assert (drift.cause, drift.compared) == ("none", (0, 0))
    assert drift.meaning[0].startswith("No change of the judge is shown: the same sessions get +0.0 points (")
    assert "too few" not in " ".join(drift.meaning)


def test_the_picture_puts_every_part_on_one_scale() -> None:
    """Zero in the middle; what is told in the description is what is drawn."""
    picture = str(parts_picture(a_finding()))

    assert "Judge&#39;s part: -8.0 (-9.5 to -6.5)" in picture
    assert picture.count("<circle") == 3
    assert ">+10<" in picture
    assert 'cx="330"' in str(parts_picture(a_finding(judge=estimate(0.0))))


def test_an_unknown_part_is_not_drawn_at_zero() -> None:
    """It is told as unknown."""
    picture = str(parts_picture(a_finding(whole=estimate(None), agents=estimate(None))))

    assert picture.count("<circle") == 1
    assert "Whole change: unknown" in picture


@pytest.mark.parametrize(
    ("session_id", "variables"),
    [
        pytest.param("7d1c6c9e-1111-4222-8333-123456789abc", {"FORCE_COLOR": "1"}, id="on-a-terminal"),
        pytest.param("x" * 120, {}, id="in-a-pipe"),
    ],
)
def test_the_id_of_an_anchor_stays_in_one_line(
    session_id: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns, beside long names: it is what the next command is given."""
    for name, value in ({"COLUMNS": "80"} | variables).items():
        monkeypatch.setenv(name, value)
    names = "kubernetes-production", "Kubernetes pod is crash looping"
    show_standing(Standing([Anchor(session_id, *names, "ada", NOON, None, "lacking", 1, 1, None, False)], []))

    told = capsys.readouterr().out
    assert session_id in told
    assert ("not judged yet by the judge of now" in told) == (not variables), "the others fold where there is no room"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["anchors", "add"], "name sessions, or have them drawn", id="nothing"),
        pytest.param(["anchors", "add", "s-1", "--sample", "3"], "name sessions, or have them drawn", id="both"),
        pytest.param(["anchors", "add", "s-1", "--chain", "k"], "--chain goes with --sample", id="named-and-chain"),
        pytest.param(["anchors", "add", ""], "'' is not a session id", id="empty-session"),
        pytest.param(["anchors", "add", "s-1", "--note", "x" * 4001], "at most 4,000 characters", id="a-long-note"),
        pytest.param(["anchors", "remove"], "Missing argument", id="remove-nothing"),
        pytest.param(["anchors", "add", "--sample", "0"], "0 is not in the range", id="sample-of-none"),
        pytest.param(["report", "drift", "--since", "soon"], "'soon' is no time", id="no-time"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], says: str) -> None:
    """Status 2, before anything is connected to."""
    ended = CliRunner().invoke(cli, arguments, env={"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"})

    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
