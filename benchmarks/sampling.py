"""
How often samples put a score in the wrong band, by the setting `samples`: `python -m benchmarks.sampling`.

Sessions have true scores uniform over 0-100, which the judge reads with a normal error. The docstring of
`judge.assess.is_doubtful` gives the figures of this program.
"""

import argparse
import asyncio
import random
from types import SimpleNamespace

from rich.console import Console

from tarsy_scoring.config.settings import ChainSettings
from tarsy_scoring.judge.assess import Samples, assess, edges
from tarsy_scoring.judge.criteria import Criteria
from tarsy_scoring.judge.verdict import Question, Turn

DEVIATION = 6  # standard deviation of one judgement, in points
CRITERIA = Criteria.model_validate(
    {
        "name": "simulated",
        "system_prompt": "Judge.",
        "prompt": "{{ALERT_DATA}} {{SESSION_CONVERSATION}} {{OUTPUT_SCHEMA}}",
        "follow_up_prompt": "What is missing?",
        "reminder_prompt": "The total?",
        "bands": {"from_80": (80, 100), "from_60": (60, 79), "from_35": (35, 59), "from_0": (0, 34)},
    }
)
CONTEXT = SimpleNamespace(alert="", conversation="", entry_text=lambda _: None)
PLANS: tuple[Samples, ...] = (1, 3, 5, "adaptive")


class NoisyJudge:
    """A judge that answers with the session's true score plus a normal error, and counts its readings."""

    def __init__(self, seed: int) -> None:
        self._errors = random.Random(seed)
        self.true_score = 0.0
        self.readings = 0

    async def __call__(self, question: Question) -> Turn:
        if question.kind == "missing_tools":
            return turn("No critical missing tools identified.")
        self.readings += 1
        return turn(str(min(100, max(0, round(self._errors.gauss(self.true_score, DEVIATION))))))


def turn(reply: str) -> Turn:
    """A turn of the simulated judge with this reply."""
    return Turn(
        kind="analysis",
        reply=reply,
        provider="simulated",
        model_requested="simulated",
        model_served=None,
        input_tokens=None,
        cached_input_tokens=None,
        output_tokens=None,
        cost_usd=None,
        latency_ms=0,
        finish_reason="stop",
    )


def band_of(score: float) -> int:
    """Number of the band, from 0; also for a true score, which is no whole number."""
    return sum(score >= edge for edge in edges(CRITERIA))


async def simulate(samples: Samples, sessions: int, seed: int) -> tuple[float, float]:
    """
    Score simulated sessions with this number of samples; the same seed gives the same sessions.

    Returns:
        Share of scores in another band than the true one, and readings per score.
    """
    true_scores, judge = random.Random(f"sessions {seed}"), NoisyJudge(seed)
    wrong = 0
    for _ in range(sessions):
        judge.true_score = true_scores.uniform(0, 100)
        verdict = await assess(CONTEXT, CRITERIA, judge, ChainSettings(samples=samples), is_final=lambda _: True)
        wrong += band_of(verdict.total_score) != band_of(judge.true_score)
    return wrong / sessions, judge.readings / sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    console = Console()
    for samples in PLANS:
        wrong, readings = asyncio.run(simulate(samples, args.sessions, args.seed))
        console.print(f"{samples!s:>8} samples: {wrong:6.1%} in the wrong band, {readings:.2f} readings per score")


if __name__ == "__main__":
    main()
