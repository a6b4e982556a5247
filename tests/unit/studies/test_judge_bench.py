"""The AUC of a judge with known answers, and the sessions that it ranks wrongly."""

import pytest

from tarsy_scoring.studies.judge_bench import BenchSample, JudgedSession, KnownOutcome, Outcome, auc, misranked


def sessions(*totals: tuple[Outcome, int | None], source: str = "bank", per_incident: int = 1) -> list[JudgedSession]:
    return [
        JudgedSession(
            KnownOutcome(f"{source}-{n}", outcome, source, f"i-{n // per_incident}"), [BenchSample(total, "why")]
        )
        for n, (outcome, total) in enumerate(totals)
    ]


@pytest.mark.parametrize(
    ("judged", "value"),
    [
        pytest.param(sessions(("right", 80), ("right", 40), ("wrong", 20), ("wrong", 40)), 0.875, id="a tie is half"),
        pytest.param(sessions(("right", None), ("right", 80), ("wrong", 20)), 0.5, id="without a total all is lost"),
        pytest.param(sessions(("right", 80), ("right", 90)), None, id="no pair"),
        pytest.param(
            [*sessions(("right", 80), ("wrong", 20)), *sessions(("right", 10), ("wrong", 5), source="shop")],
            1.0,
            id="pairs within a source",
        ),
    ],
)
def test_the_auc_is_the_share_of_pairs(judged: list[JudgedSession], value: float | None) -> None:
    assert auc(judged)[0] == value


def test_the_interval_takes_incidents_as_observations() -> None:
    """At 1 it is Wilson's; two sessions of one incident give none."""
    apart = sessions(*[("right", 80), ("wrong", 20)] * 4)

    assert auc(apart) == (1.0, pytest.approx(8 / (8 + 1.96**2)), 1.0)
    mixed = [("right", 80), ("wrong", 20), ("right", 30), ("wrong", 50)]
    _, low, high = auc(sessions(*mixed * 5))
    assert 0 < (low or 0) < 0.75 < (high or 0) < 1
    assert auc(sessions(("right", 80), ("wrong", 20), per_incident=2)) == (1.0, None, None)


def test_sessions_that_lose_pairs_come_first() -> None:
    found = misranked(sessions(("right", 80), ("right", None), ("wrong", 80), ("wrong", 20)))

    assert [(m["session_id"], m["lost"], m["pairs"], m["reason"]) for m in found] == [
        ("bank-1", 2.0, 2, "why"),
        ("bank-2", 1.5, 2, None),
        ("bank-3", 1.0, 2, None),
        ("bank-0", 0.5, 2, None),
    ]
