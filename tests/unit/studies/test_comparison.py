"""Two versions side by side: verdicts, and what is not compared."""

import random
from dataclasses import replace
from typing import Any

from tarsy_scoring.studies.comparison import METRICS, ScoredSession, compare_versions


def some(
    value: str, mean: float, n: int = 60, *, judge: str = "judge-1", chain: str = "k", seed: int = 1
) -> list[ScoredSession]:
    dice = random.Random(f"{value}-{seed}")
    return [
        ScoredSession(
            value,
            chain,
            ("disk", "memory")[i % 2],
            min(100, max(0, round(dice.gauss(mean, 10)))),
            {"error_rate": 0.1 + dice.random() / 10, "total_commands": 20 + dice.randrange(5)},
            judge,
            [],
            "pass" if dice.random() < mean / 100 else "fail",
        )
        for i in range(n)
    ]


def of(comparison: dict[str, Any], metric: str) -> Any:
    return next(m for m in comparison["metrics"] if m["metric"] == metric)


def test_a_better_version_is_shown_in_totals_alone() -> None:
    found = compare_versions([*some("v1", 60), *some("v2", 72), *some("v3", 10)], ("v1", "v2"))

    total = of(found, "total_score")
    assert (total["verdict"], found["sessions"], found["judges"]) == ("higher", [60, 60], 1)
    assert total["difference"]["low"] < 12 < total["difference"]["high"]
    assert of(found, "error_rate")["verdict"] == "no difference shown"
    assert found["meaning"][0] == "'v2' against 'v1': total_score higher."
    assert [m["metric"] for m in found["metrics"]] == list(METRICS)


def test_equal_versions_show_nothing() -> None:
    found = compare_versions([*some("v1", 60), *some("v2", 60)], ("v1", "v2"))

    assert {m["verdict"] for m in found["metrics"]} <= {"no difference shown", "too few"}
    assert found["meaning"][0] == "No difference is shown."


def test_totals_of_different_judges_are_not_compared() -> None:
    """How the agents worked needs no judge."""
    found = compare_versions([*some("v1", 60), *some("v2", 80, judge="judge-2")], ("v1", "v2"))

    assert (of(found, "total_score")["verdict"], of(found, "pass_share")["verdict"]) == ("too few", "too few")
    assert of(found, "error_rate")["verdict"] == "no difference shown"
    assert any("totals of different judges are not compared" in sentence for sentence in found["meaning"])


def test_another_mixture_of_chains_is_no_difference() -> None:
    v1 = [*some("v1", 80, 50), *some("v1", 30, 10, chain="hard")]
    v2 = [*some("v2", 80, 10, seed=2), *some("v2", 30, 50, chain="hard", seed=2)]

    total = of(compare_versions([*v1, *v2], ("v1", "v2")), "total_score")

    assert total["verdict"] == "no difference shown"
    assert total["first"]["mean"] - total["second"]["mean"] > 25


def test_doubtful_totals_are_left_out() -> None:
    doubtful = [replace(s, flags=["tampering_suspected"], total_score=100) for s in some("v2", 60)]

    found = compare_versions([*some("v1", 60), *some("v2", 60, seed=2), *doubtful], ("v1", "v2"))

    assert (found["doubtful"], of(found, "total_score")["second"]["n"]) == (60, 60)
    assert any("flagged as doubtful: 60" in sentence for sentence in found["meaning"])
