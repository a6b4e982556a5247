"""Two versions side by side: verdicts, sessions left out, and the judges' part of a difference."""

import random
from dataclasses import replace
from typing import Any

import pytest

from tables import table
from tarsy_scoring.statistics.comparison import METRICS, Comparison, MetricComparison, ScoredSession, compare_versions
from tarsy_scoring.statistics.drift import AnchorJudgement

OLD, NEW = "v1", "v2"
ALERTS = ("oom", "latency", "node")
SESSION = ScoredSession(
    value=OLD,
    chain_id="kubernetes",
    alert_type="oom",
    total_score=60,
    interaction=None,
    judge_fingerprint="judge-1",
    flags=(),
    outcome=None,
)


def metric(comparison: Comparison, name: str = "total_score") -> MetricComparison:
    [found] = [m for m in comparison.metrics if m.metric == name]
    return found


def with_totals(value: str, *totals: int | None, **changes: Any) -> list[ScoredSession]:
    return [replace(SESSION, value=value, total_score=total, **changes) for total in totals]


def shown(comparison: Comparison) -> set[str]:
    return {m.metric for m in comparison.metrics if m.verdict in {"higher", "lower"}}


def test_the_error_level_is_divided_among_the_metrics() -> None:
    assert METRICS[0].name == "total_score"
    assert METRICS[0].allowed_chance == pytest.approx(0.025)
    assert sum(m.allowed_chance for m in METRICS) == pytest.approx(0.05)


def test_sessions_are_compared_within_chain_alert_type_and_judge() -> None:
    """The new version met more easy sessions: its plain mean is higher, but not the mean within a kind."""
    for name in ("chain_id", "alert_type", "judge_fingerprint"):
        hard, easy = {name: "hard"}, {name: "easy"}
        sessions = with_totals(OLD, *[38, 42] * 15, **hard) + with_totals(OLD, *[78, 82] * 3, **easy)
        sessions += with_totals(NEW, *[38, 42] * 3, **hard) + with_totals(NEW, *[78, 82] * 15, **easy)

        compared = compare_versions(sessions, (OLD, NEW))

        found = metric(compared)
        assert (found.difference.value, found.verdict) == (pytest.approx(0), "no difference shown"), name
        assert (found.is_paired, found.strata, found.chance) == (True, 2, None)
        assert (found.second.mean or 0) - (found.first.mean or 0) > 15
        assert compared.judge_fingerprints == (2 if name == "judge_fingerprint" else 1)


def test_interaction_metrics_are_compared_within_alert_types() -> None:
    source = random.Random(3)
    sessions = [
        replace(
            SESSION,
            value=value,
            alert_type=alert,
            judge_fingerprint=value,
            interaction={"error_rate": mean + source.gauss(0, 0.02)},
        )
        for value, alert, mean, n in (
            (OLD, "easy", 0.1, 8),
            (OLD, "hard", 0.6, 32),
            (NEW, "easy", 0.1, 32),
            (NEW, "hard", 0.6, 8),
        )
        for _ in range(n)
    ]

    found = metric(compare_versions(sessions, (OLD, NEW)), "error_rate")

    assert (found.verdict, found.is_paired) == ("no difference shown", True)
    assert abs(found.difference.value or 1) < 0.02


def test_one_metric_of_many_needs_a_smaller_chance() -> None:
    rates = {OLD: (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), NEW: (4, 5, 6, 7, 8, 9, 10, 11, 12, 13)}
    sessions = [
        replace(SESSION, value=value, interaction={"error_rate": rate / 20})
        for value, each in rates.items()
        for rate in each
    ]

    found = metric(compare_versions(sessions, (OLD, NEW)), "error_rate")

    assert found.difference.low is not None
    assert found.difference.low > 0
    assert found.chance is not None
    assert 0.025 < found.chance < 0.05
    assert found.verdict == "no difference shown"


# --- direction, order, numbers -------------------------------------------------------------------------


@pytest.mark.parametrize(("values", "verdict", "sign"), [((OLD, NEW), "higher", 1), ((NEW, OLD), "lower", -1)])
def test_a_difference_is_second_minus_first(values: tuple[str, str], verdict: str, sign: int) -> None:
    sessions = with_totals(OLD, *range(40, 60)) + with_totals(NEW, *range(60, 80)) + with_totals("v3", 0, 0, 0)

    found = compare_versions(sessions, values)

    total = metric(found)
    assert (found.sessions, total.verdict) == ((20, 20), verdict)
    assert total.difference.value == pytest.approx(20 * sign)
    assert total.difference.low is not None
    assert total.difference.high is not None
    assert 0 < total.difference.low * sign < 40
    assert total.difference.low < 20 * sign < total.difference.high


def test_the_order_of_sessions_changes_nothing() -> None:
    source = random.Random(1)
    sessions = [
        session
        for value, mean in ((OLD, 50), (NEW, 62))
        for n in range(30)
        for session in with_totals(
            value, round(source.gauss(mean, 12)), alert_type=ALERTS[n % 3], interaction={"error_rate": source.random()}
        )
    ]

    assert compare_versions(sessions, (OLD, NEW)) == compare_versions(sessions[::-1], (OLD, NEW))


def test_each_metric_has_its_mean_and_count() -> None:
    rates = {"error_rate": 0.5, "total_commands": 4, "help_invocations": 0, "retry_rate": None}
    sessions = [
        replace(SESSION, outcome="pass", interaction=rates),
        replace(SESSION, outcome="fail", interaction=rates | {"error_rate": None}, total_score=80),
        replace(SESSION, total_score=None, interaction={"error_rate": "unknown", "total_commands": True}),
    ]

    compared = compare_versions(sessions, (OLD, NEW))
    found = {m.metric: (m.first.n, m.first.mean) for m in compared.metrics}

    assert compared.doubtful == 0
    assert found == {
        "total_score": (2, 70),
        "pass_share": (2, 0.5),
        "error_rate": (1, 0.5),
        "retry_rate": (0, None),
        "first_try_success_rate": (0, None),
        "iteration_ratio": (0, None),
        "total_commands": (2, 4),
        "help_invocations": (2, 0),
    }


# --- what is not compared ------------------------------------------------------------------------------


def test_too_few_sessions_have_neither_interval_nor_verdict() -> None:
    for n, difference in ((0, None), (1, 79), (4, 79)):
        compared = compare_versions(with_totals(OLD, *[10, 12] * 20) + with_totals(NEW, *[90] * n), (OLD, NEW))
        found = metric(compared)
        assert (found.verdict, found.chance, found.difference.low) == ("too few", None, None)
        assert found.difference.value == difference
        assert found.difference.reason
        assert found.second.n == n
        # Chain and alert type are shared, so they are not named as an explanation.
        assert "may be due to these alone" not in " ".join(compared.meaning)
    five = with_totals(OLD, 10, 11, 12, 13, 14, alert_type=None) + with_totals(NEW, 90, 91, 92, 93, 94, alert_type=None)
    assert metric(compare_versions(five, (OLD, NEW))).verdict == "higher"


def test_too_few_sessions_per_judge_have_no_verdict() -> None:
    sessions = [s for n in range(9) for s in with_totals(OLD, 40, judge_fingerprint=f"judge-{n}")]
    sessions += [s for n in range(9) for s in with_totals(NEW, 60 + n, judge_fingerprint=f"judge-{n}")]

    found = metric(compare_versions(sessions, (OLD, NEW)))

    assert (found.verdict, found.chance, found.difference.value) == ("too few", None, pytest.approx(24))


@pytest.mark.parametrize("flag", ["outcome_score_mismatch", "tampering_suspected"])
def test_doubtful_totals_stay_out(flag: str) -> None:
    sessions = with_totals(OLD, *[40, 60] * 5) + with_totals(NEW, *[40, 60] * 5)
    sessions += with_totals(NEW, 100, 100, flags=[flag, "ungrounded"], outcome="pass", interaction={"error_rate": 0})

    found = compare_versions(sessions, (OLD, NEW))

    assert (metric(found).second.n, metric(found).second.mean, found.doubtful) == (10, 50, 2)
    assert (metric(found, "pass_share").second.n, metric(found, "error_rate").second.n) == (2, 2)
    assert any("doubtful: 2" in sentence for sentence in found.meaning)


def test_totals_of_different_judges_are_never_compared() -> None:
    rates = [{"error_rate": n / 20} for n in range(10)]
    sessions = [replace(SESSION, interaction=r, judge_fingerprint="strict", outcome="fail") for r in rates]
    sessions += [
        replace(SESSION, value=NEW, total_score=95, interaction=r, judge_fingerprint="lenient", outcome="pass")
        for r in rates
    ]

    found = compare_versions(sessions, (OLD, NEW))

    for name in ("total_score", "pass_share"):
        assert (metric(found, name).difference.value, metric(found, name).verdict) == (None, "too few")
        assert "no judge scored sessions of both" in (metric(found, name).difference.reason or "")
    assert metric(found, "error_rate").verdict == "no difference shown"


def test_totals_without_a_judge_are_counted_and_reported() -> None:
    known = with_totals(OLD, *range(40, 60)) + with_totals(NEW, *range(60, 80))
    unnamed = [replace(s, judge_fingerprint=None) for s in known]

    found, of_one = compare_versions(unnamed, (OLD, NEW)), compare_versions(known, (OLD, NEW))

    assert metric(found) == metric(of_one)
    assert (found.judge_unknown, of_one.judge_unknown) == (40, 0)
    assert any("unverified: 40 sessions" in sentence for sentence in found.meaning)
    assert metric(compare_versions(known[:20] + unnamed[20:], (OLD, NEW))).verdict == "too few"


def test_outcomes_of_gates_need_no_judge() -> None:
    versions = with_totals(OLD, *[None] * 20, outcome="fail") + with_totals(NEW, *[None] * 20, outcome="pass")
    sessions = [replace(s, judge_fingerprint=None) for s in versions]

    found = compare_versions(sessions, (OLD, NEW))

    assert (metric(found, "pass_share").verdict, found.judge_unknown) == ("higher", 0)


# --- the judges' part ----------------------------------------------------------------------------------


def anchored(*changes: float, old: str = "strict", new: str = "lenient") -> list[AnchorJudgement]:
    pairs = ((f"anchor-{i}", 50, 50 + change) for i, change in enumerate(changes))
    return [j for i, a, b in pairs for j in (AnchorJudgement(i, old, a), AnchorJudgement(i, new, b))]


def mixed_judges(shift: int, better: int) -> list[ScoredSession]:
    """A strict judge scored v1 and a lenient one v2; the lenient judge gives `shift` points more."""
    sessions = with_totals(OLD, *range(40, 60), judge_fingerprint="strict")
    return sessions + with_totals(NEW, *(t + shift + better for t in range(40, 60)), judge_fingerprint="lenient")


def test_the_parts_of_judges_and_agents_are_reported() -> None:
    found = compare_versions(mixed_judges(10, 12), (OLD, NEW), anchored(8, 9, 10, 11, 12))

    assert found.parts is not None
    values = [found.parts.whole.value, found.parts.judges.value, found.parts.agents.value]
    assert values == pytest.approx([22, 10, 12])
    assert metric(found).difference == found.parts.agents
    assert compare_versions(mixed_judges(10, 12)[::-1], (OLD, NEW), anchored(8, 9, 10, 11, 12)[::-1]) == found
    assert (metric(found).second.mean, metric(found).verdict) == (71.5, "higher")
    assert [(j.fingerprint, j.totals, j.scale, j.shift.value) for j in found.judges] == [
        ("lenient", (0, 20), "lenient", 0),
        ("strict", (20, 0), "lenient", -10),
    ]
    assert any("The judges' part of that is +10.0" in s and "measured on 5 anchors" in s for s in found.meaning)


def test_unsteady_anchors_show_no_difference() -> None:
    """The same 12 points, with anchors of large variance, whose error is in interval and chance."""
    sure, unsure = (
        metric(compare_versions(mixed_judges(10, 12), (OLD, NEW), anchored(*changes)))
        for changes in ((8, 9, 10, 11, 12), (-20, 40, 10, -5, 25))
    )

    assert (sure.verdict, unsure.verdict) == ("higher", "no difference shown")
    assert unsure.difference.value == pytest.approx(sure.difference.value)
    assert unsure.difference.low is not None
    assert unsure.difference.low < 0


def test_the_error_of_anchors_raises_the_chance() -> None:
    """The 95 % interval excludes 0, yet the chance exceeds the 2.5 % that the total is allowed."""
    found = metric(compare_versions(mixed_judges(10, 10), (OLD, NEW), anchored(1, 19, 10, 5, 15)))

    assert found.difference.low is not None
    assert found.difference.low > 0
    assert found.chance is not None
    assert 0.025 < found.chance < 0.05
    assert found.verdict == "no difference shown"


def test_without_enough_anchors_the_report_says_how_to_get_them() -> None:
    judgements = anchored(8, 9, 10, 11)
    judgements.append(AnchorJudgement("another", "strict", 50))

    found = compare_versions(mixed_judges(10, 12), (OLD, NEW), judgements)

    assert (metric(found).verdict, metric(found).difference.value, found.parts) == ("too few", None, None)
    meaning = " ".join(found.meaning)
    for words in (
        "two of them have 4 anchors in common",
        "it takes 5",
        "only one of these two has judged: 1.",
        "`tarsy-scoring anchors run`",
        "rescore",
    ):
        assert words in meaning
    assert "anchors run" not in " ".join(compare_versions(mixed_judges(0, 0), (OLD, NEW)).meaning)


def test_versions_are_compared_within_judges_if_both_met_both() -> None:
    sessions = [
        *(with_totals(OLD, *range(40, 60), judge_fingerprint="strict")),
        *(with_totals(OLD, *range(60, 75), judge_fingerprint="lenient")),
        *(with_totals(NEW, *range(52, 67), judge_fingerprint="strict")),
        *(with_totals(NEW, *range(72, 92), judge_fingerprint="lenient")),
    ]

    found = compare_versions(sessions, (OLD, NEW), anchored(-20, 60, 20, 0, 40))

    assert found.parts is None
    assert metric(found) == metric(compare_versions(sessions, (OLD, NEW)))
    assert metric(found).verdict == "higher"
    assert any("still compared within judges" in s for s in found.meaning)


def test_strata_are_not_given_up_to_stay_within_judges() -> None:
    """Within judges only different alert types are left, 40 points apart; unsteady anchors are better."""
    easy, hard = range(75, 85), range(35, 45)
    sessions = [
        *with_totals(OLD, *easy, *easy, alert_type="easy", judge_fingerprint="strict"),
        *with_totals(OLD, *hard, alert_type="hard", judge_fingerprint="lenient"),
        *with_totals(NEW, *hard, *hard, alert_type="hard", judge_fingerprint="strict"),
        *with_totals(NEW, *easy, alert_type="easy", judge_fingerprint="lenient"),
    ]

    found = metric(compare_versions(sessions, (OLD, NEW), anchored(-20, 20, 0, -10, 10)))

    assert (found.is_paired, found.verdict) == (True, "no difference shown")


def test_anchors_do_not_change_a_comparison_under_one_judge() -> None:
    sessions = with_totals(OLD, *range(40, 60)) + with_totals(NEW, *range(60, 80))
    judgements = anchored(8, 9, 10, 11, 12, old="judge-1", new="judge-2")

    assert compare_versions(sessions, (OLD, NEW), judgements) == compare_versions(sessions, (OLD, NEW))
    with_anchors, without = (
        compare_versions(mixed_judges(10, 12), (OLD, NEW), judgements)
        for judgements in (anchored(8, 9, 10, 11, 12), [])
    )
    assert with_anchors.metrics[1:] == without.metrics[1:]


# --- pairing -------------------------------------------------------------------------------------------


@table
def test_versions_without_similar_sessions_have_no_verdict(elsewhere: dict[str, Any]) -> None:
    rates = {"error_rate": 0.1}, {"error_rate": 0.6}
    sessions = with_totals(OLD, *range(40, 60), interaction=rates[0], outcome="fail")
    sessions += with_totals(NEW, *range(60, 80), interaction=rates[1], outcome="pass", **elsewhere)

    found = compare_versions(sessions, (OLD, NEW))

    for name, difference in (("total_score", 20), ("pass_share", 1), ("error_rate", 0.5)):
        one = metric(found, name)
        assert (one.verdict, one.is_paired, one.chance) == ("too few", False, None)
        assert (one.difference.value, one.difference.low) == (pytest.approx(difference), None)
        assert (one.first.n, one.first.compared, one.second.compared, one.strata) == (20, 0, 0, 0)
        assert one.strata_left_out == 2
        assert "too few sessions of both versions share chain" in (one.difference.reason or "")
    assert shown(found) == set()
    assert found.meaning[0] == "There are too few comparable sessions to show anything."
    text = " ".join(found.meaning)
    assert "No verdict on total_score, pass_share, error_rate:" in text
    assert "a difference may be due to these alone" in text
    assert "Nothing balances them" in text
    assert "Strata balance" not in text


def test_anchors_do_not_replace_similar_sessions() -> None:
    sessions = with_totals(OLD, *range(40, 60), judge_fingerprint="strict")
    sessions += with_totals(NEW, *range(62, 82), judge_fingerprint="lenient", chain_id="network")

    found = compare_versions(sessions, (OLD, NEW), anchored(8, 9, 10, 11, 12))

    assert (metric(found).verdict, found.parts) == ("too few", None)
    text = " ".join(found.meaning)
    assert "The agents' part" not in text
    assert "still compared within judges" not in text


def test_strata_of_one_version_alone_are_left_out_and_counted() -> None:
    sessions = with_totals(OLD, *range(40, 50)) + with_totals(NEW, *range(50, 60))
    sessions += with_totals(OLD, 0, 0, 0, alert_type="only-old") + with_totals(NEW, 0, alert_type=None)

    found = metric(compare_versions(sessions, (OLD, NEW)))

    assert (found.first.n, found.first.compared, found.second.n, found.second.compared) == (13, 10, 11, 10)
    assert (found.is_paired, found.difference.value) == (True, pytest.approx(10))
    assert (found.strata, found.strata_left_out) == (1, 2)
    text = compare_versions(sessions, (OLD, NEW)).meaning[1]
    assert text.startswith("Compared in total_score: 20 of 24 sessions (83.3 %).")
    assert "does not cover the other 4 sessions of 2 kinds" in text


def test_a_side_that_never_varies_has_a_verdict_but_no_interval() -> None:
    sessions = [replace(SESSION, outcome=outcome) for outcome in ("pass", "fail") * 20]
    sessions += [replace(SESSION, value=NEW, outcome="pass")] * 40

    found = metric(compare_versions(sessions, (OLD, NEW)), "pass_share")

    assert (found.verdict, found.difference.low, found.difference.value) == ("higher", None, pytest.approx(0.5))
    assert "does not vary" in (found.difference.reason or "")
