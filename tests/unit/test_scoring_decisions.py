"""Decisions of an attempt without I/O: backoff, sums of usage, and the judge's fingerprint."""

from dataclasses import replace

import pytest

from attempting import a_timeline
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.judge.verdict import Turn
from tarsy_scoring.scoring.attempt import backoff_s, facts_of, look_again_s
from tarsy_scoring.scoring.columns import judge_fingerprint, sum_usage
from tarsy_scoring.timeline.clean.masking import SHIPPED

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


def test_backoff_doubles_up_to_ten_minutes() -> None:
    """It starts at 10 s and varies by a fifth either way."""
    for burned, expected in {1: 10, 2: 20, 4: 80, 7: 600, 50: 600}.items():
        jittered = [backoff_s(burned, jitter) for jitter in (0, 1, -1)]
        assert jittered == pytest.approx([expected, expected * 1.2, expected * 0.8])


@pytest.mark.parametrize("grace_s", [1, 30, 120, 600])
def test_a_session_is_looked_for_at_most_a_dozen_times(grace_s: float) -> None:
    """The pauses grow from 2 s to a quarter of the grace period; the last look is at its end, not after it."""
    for jitter in (0, 0.5, 1):
        age_s, pauses = 0.0, []
        while age_s < grace_s:
            pauses.append(look_again_s(age_s, grace_s, jitter))
            age_s += pauses[-1]
        assert age_s == pytest.approx(grace_s)
        assert len(pauses) < 12, "the first look comes before the first pause"
        assert pauses[:-1] == sorted(pauses[:-1])
        assert pauses[0] <= 2.4


def test_usage_is_summed_over_turns() -> None:
    """Every turn that was paid for counts, also those of earlier attempts."""
    assert sum_usage([TURN, replace(TURN, input_tokens=1, cost_usd=0.25)]) == {
        "input_tokens": 101,
        "cached_input_tokens": 80,
        "output_tokens": 20,
        "cost_usd": 0.75,
    }


def test_an_unknown_part_makes_an_unknown_sum() -> None:
    """Unknown usage is null: a sum of the known parts would be a made-up number."""
    for turns in ([], [TURN, replace(TURN, cost_usd=None)]):
        assert sum_usage(turns)["cost_usd"] is None


def test_model_provider_and_sampling_change_the_fingerprint() -> None:
    """Scores of different judges never look comparable."""
    judges = [
        (ProviderSettings(), TURN),
        (ProviderSettings(), replace(TURN, model_served="judge-2")),
        (ProviderSettings(), replace(TURN, model_requested="judge-2")),
        (ProviderSettings(), replace(TURN, provider="spare")),
        (ProviderSettings(temperature=0.5), TURN),
        (ProviderSettings(context_window_tokens=64_000), TURN),
        (ProviderSettings(max_reply_tokens=4_000), TURN),
    ]
    assert len({judge_fingerprint("c", *judge) for judge in judges}) == len(judges)


def test_the_content_of_a_turn_does_not_change_the_fingerprint() -> None:
    """The fingerprint identifies the judge, not the answer."""
    settings = ProviderSettings()
    other = replace(TURN, reply="else", input_tokens=7, latency_ms=9, cost_usd=None)

    assert judge_fingerprint("c", settings, other) == judge_fingerprint("c", settings, TURN)
    assert judge_fingerprint("d", settings, TURN) != judge_fingerprint("c", settings, TURN)


def test_what_the_source_says_of_a_session_is_masked() -> None:
    """Before it is stored, shown in lists and sent with events."""
    facts = facts_of(a_timeline(alert_type="password=hunter2hunter2", labels={"token": "hunter2hunter2"}), SHIPPED)

    assert facts.alert_type == "password=[REDACTED:password#1]"
    assert facts.labels == {"token": "[REDACTED:token#1]"}
