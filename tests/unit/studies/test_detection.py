"""Who judges a chain, when it is looked at, and what a look says."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tables import table
from tarsy_scoring.studies.detection import (
    DAYS_TO_WAIT,
    FEWEST_SESSIONS,
    NEWEST,
    OWN_ANCHORS,
    RECENT,
    WINDOW,
    AnchorJudgement,
    Cause,
    ChainScore,
    Look,
    Tenure,
    counted_anchors,
    current_tenure,
    detect,
    due_look,
)

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
OLD, NEW = "judge-old", "judge-new"


def scores(judge: str, mean: float, n: int, *, start: int = 0) -> list[ChainScore]:
    dice = random.Random(f"{judge}-{mean}-{start}")
    times = [NOON + timedelta(hours=start + i) for i in range(n)]
    return [ChainScore(at, at, judge, "h", ("a", "b")[i % 2], dice.gauss(mean, 10)) for i, at in enumerate(times)]


def anchors(change: float, n: int = 40, chain: str = "k") -> list[AnchorJudgement]:
    dice = random.Random(7)
    found = []
    for i in range(n):
        total = dice.gauss(60, 10)
        found.append(AnchorJudgement(f"{chain}-{i}", OLD, total, chain))
        found.append(AnchorJudgement(f"{chain}-{i}", NEW, total + change + dice.gauss(0, 3), chain))
    return found


def replaced(mean: float, after: int = WINDOW) -> Tenure:
    found = current_tenure([*scores(OLD, 60, 300), *scores(NEW, mean, after, start=300)])
    assert found is not None
    return found


def test_the_judge_of_the_newest_scores_follows_the_one_before() -> None:
    tenure = replaced(60, 60)

    assert (tenure.fingerprint, tenure.old, len(tenure.scores), len(tenure.before)) == (NEW, OLD, 60, 300)
    assert tenure.since == NOON + timedelta(hours=300)


def test_judges_that_alternate_follow_nobody() -> None:
    mixed = sorted([*scores(OLD, 60, 100), *scores(NEW, 60, 100)], key=lambda s: s.scored_at)
    found = current_tenure(mixed)

    assert found is not None
    assert found.old is None
    assert current_tenure(mixed[: RECENT - 1]) is None


@pytest.mark.parametrize(
    ("after", "outstanding", "made", "days", "look"),
    [
        pytest.param(FEWEST_SESSIONS, 0, [], 3, "sessions", id="enough sessions"),
        pytest.param(FEWEST_SESSIONS - 1, 0, [], 3, None, id="too few sessions"),
        pytest.param(FEWEST_SESSIONS, 2, [], 3, None, id="anchors outstanding"),
        pytest.param(RECENT, 2, [], DAYS_TO_WAIT + 1, "sessions", id="waited long enough"),
        pytest.param(FEWEST_SESSIONS, 0, ["sessions"], 3, None, id="looked at"),
        pytest.param(NEWEST + FEWEST_SESSIONS, 0, ["sessions"], 3, "watch", id="watched from then on"),
    ],
)
def test_a_look_is_due(after: int, outstanding: int, made: list[Look], days: int, look: Look | None) -> None:
    tenure = replaced(60, after)

    assert due_look(tenure, outstanding, made, tenure.since + timedelta(days=days)) == look


@table
def test_the_cause_of_a_change_is_named(judge: float, whole: float, cause: Cause) -> None:
    found = detect(replaced(60 + whole), anchors(judge), "sessions")

    assert (found.cause, found.is_clear, found.anchors) == (cause, True, 40)
    assert found.judge.value == pytest.approx(judge, abs=2)
    assert found.agents.value == pytest.approx(whole - judge, abs=5)
    assert found.began_at == NOON + timedelta(hours=300)


def test_without_anchors_the_cause_is_undecided() -> None:
    found = detect(replaced(80), [], "sessions")

    assert (found.cause, found.is_clear, found.judge.value) == (None, False, None)
    assert found.meaning[0].startswith("The cause of a change cannot be decided; ordinary sessions changed by +")
    assert "0 sessions were judged by both judges" in found.meaning[1]


def test_anchors_alone_show_a_changed_judge() -> None:
    tenure = Tenure(NEW, scores(NEW, 70, 3, start=300), OLD, scores(OLD, 60, 300))

    assert detect(tenure, anchors(10), "sessions").cause == "judge"


@pytest.mark.parametrize(("mean", "cause"), [(60, "none"), (50, "agents")])
def test_under_one_judge_every_change_is_the_agents(mean: float, cause: Cause) -> None:
    found = detect(Tenure(OLD, [*scores(OLD, 60, 300), *scores(OLD, mean, NEWEST, start=300)]), [], "watch")

    assert (found.cause, found.judge.value, found.compared_before, found.compared_after) == (cause, 0, 300, NEWEST)
    assert found.agents == found.whole


def test_anchors_of_other_chains_serve_a_chain_with_few() -> None:
    own, others = anchors(0, OWN_ANCHORS - 1), anchors(0, 40, "other")
    tenure = replaced(60)

    assert len(counted_anchors([*own, *others], "k", tenure)) == len(own) + len(others)
    assert counted_anchors([*anchors(0, OWN_ANCHORS), *others], "k", tenure) == anchors(0, OWN_ANCHORS)
