"""What an attempt decides by itself: waiting, room in the window, sums, and who answered."""

from dataclasses import replace

import pytest

from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.verdict import Turn
from tarsy_scoring.scoring.attempt import backoff_s
from tarsy_scoring.scoring.providers import context_budget
from tarsy_scoring.scoring.score_columns import judge_fingerprint, sum_usage

TURN = Turn(
    kind="analysis",
    reply="...",
    provider="main",
    model_requested="judge-1",
    model_served="judge-1-2026",
    input_tokens=100,
    cached_input_tokens=40,
    output_tokens=10,
    cost_usd=0.5,
    latency_ms=12,
    finish_reason="stop",
)


@pytest.mark.parametrize(
    ("burned", "expected"),
    [
        pytest.param(1, 10, id="first"),
        pytest.param(2, 20, id="second"),
        pytest.param(4, 80, id="fourth"),
        pytest.param(7, 600, id="at-most-ten-minutes"),
        pytest.param(50, 600, id="never-overflows"),
    ],
)
def test_backoff_doubles_up_to_ten_minutes(burned: int, expected: float) -> None:
    """10 s doubling to 10 min, and a fifth of it either way."""
    assert backoff_s(burned, 0) == expected
    assert backoff_s(burned, 1) == pytest.approx(expected * 1.2)
    assert backoff_s(burned, -1) == pytest.approx(expected * 0.8)


def test_the_budget_leaves_room_for_prompts_and_two_answers() -> None:
    """Alert and conversation get what the window holds beyond the prompts and both answers."""
    criteria = load_criteria().get("investigation-methodology")
    small = ProviderSettings(context_window_tokens=32_000, max_reply_tokens=2_000)
    large = ProviderSettings(context_window_tokens=64_000, max_reply_tokens=2_000)

    assert 20_000 < context_budget(small, criteria) < 32_000 - 2 * 2_000
    assert context_budget(large, criteria) - context_budget(small, criteria) == 32_000


def test_a_window_smaller_than_the_prompts_has_no_room() -> None:
    """No room is zero, not a negative number."""
    criteria = load_criteria().get("investigation-methodology")

    assert context_budget(ProviderSettings(context_window_tokens=4_000, max_reply_tokens=2_000), criteria) == 0


def test_usage_is_summed_over_turns() -> None:
    """Every turn that was paid for counts, also those of earlier attempts."""
    assert sum_usage([TURN, replace(TURN, input_tokens=1, cost_usd=0.25)]) == {
        "input_tokens": 101,
        "cached_input_tokens": 80,
        "output_tokens": 20,
        "cost_usd": 0.75,
    }


@pytest.mark.parametrize(
    "turns",
    [pytest.param([], id="no-turn"), pytest.param([TURN, replace(TURN, cost_usd=None)], id="one-unknown")],
)
def test_an_unknown_part_makes_an_unknown_sum(turns: list[Turn]) -> None:
    """Unknown usage is null: a sum of the known parts would be a made-up number."""
    assert sum_usage(turns)["cost_usd"] is None


def test_sums_of_money_have_the_digits_of_prices() -> None:
    """A millionth of a dollar is the smallest that is told; the remains of binary fractions are not."""
    costs = (0.1, 0.2, 0.0147859999999, 0.0000004)
    assert sum_usage([replace(TURN, cost_usd=cost) for cost in costs])["cost_usd"] == 0.314786


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"model_served": "judge-2"}, id="served-model"),
        pytest.param({"model_requested": "judge-2"}, id="requested-model"),
        pytest.param({"provider": "spare"}, id="provider"),
    ],
)
def test_who_answers_changes_the_fingerprint(change: dict[str, str]) -> None:
    """Scores of different judges never look comparable."""
    settings = ProviderSettings()

    assert judge_fingerprint("c", settings, replace(TURN, **change)) != judge_fingerprint("c", settings, TURN)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(ProviderSettings(temperature=0.5), id="temperature"),
        pytest.param(ProviderSettings(context_window_tokens=64_000), id="window"),
        pytest.param(ProviderSettings(max_reply_tokens=4_000), id="reply-limit"),
    ],
)
def test_how_it_is_asked_changes_the_fingerprint(settings: ProviderSettings) -> None:
    """Sampling parameters and context policy are part of who answered."""
    assert judge_fingerprint("c", settings, TURN) != judge_fingerprint("c", ProviderSettings(), TURN)


def test_what_a_turn_says_does_not_change_the_fingerprint() -> None:
    """The fingerprint is of the judge, not of the answer."""
    settings = ProviderSettings()
    other = replace(TURN, reply="else", input_tokens=7, latency_ms=9, cost_usd=None)

    assert judge_fingerprint("c", settings, other) == judge_fingerprint("c", settings, TURN)
    assert judge_fingerprint("d", settings, TURN) != judge_fingerprint("c", settings, TURN)
