"""A judge that answers from a script, and replies in the form that each strategy asks for."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tarsy_scoring.errors import ScoringError
from tarsy_scoring.judge.verdict import Message, Question, ReplyFormat, Turn, TurnKind

# One step of a script: an answer, or the error to raise.
ScriptStep = Turn | ScoringError

# Has every entry that an analysis may cite.
CONTEXT = SimpleNamespace(
    alert="the alert",
    conversation="the timeline",
    entries={f"E{number}": (0, 0) for number in range(1, 100)},
    entry=lambda entry: "what it shows",
)


def answer(reply: str = "", **changes: Any) -> Turn:
    """A turn in which only the fields that matter to a test are known."""
    turn = Turn(
        kind="analysis",
        reply=reply,
        provider="main",
        model_requested="m",
        model_served="m-1",
        input_tokens=None,
        cached_input_tokens=None,
        output_tokens=None,
        cost_usd=None,
        latency_ms=1,
        finish_reason="stop",
    )
    return replace(turn, **changes)


TOOL_CALLS = answer(finish_reason="tool_calls", has_tool_calls=True)
CUT = answer("However, it", finish_reason="length")


class ScriptedJudge:
    """Answers from a list and remembers what it was asked; errors in the list are raised."""

    def __init__(self, *script: ScriptStep) -> None:
        self.script = list(script)
        self.kinds: list[TurnKind] = []
        self.conversations: list[list[Message]] = []
        self.factors: list[int] = []
        self.formats: list[ReplyFormat | None] = []

    async def __call__(self, question: Question) -> Turn:
        self.kinds.append(question.kind)
        self.conversations.append(list(question.messages))
        self.factors.append(question.reply_limit_factor)
        self.formats.append(question.reply_format)
        assert self.script, f"the judge was asked once more than the test foresaw ({question.kind})"
        step = self.script.pop(0)
        if isinstance(step, ScoringError):
            raise step
        return replace(step, kind=question.kind)


# --- replies -------------------------------------------------------------------------------------------

BREAKDOWN = {"logical_flow": 15, "consistency": 17, "tool_relevance": 15, "synthesis_quality": 20}


def structured_reply(**changes: Any) -> dict[str, Any]:
    """A reply to `investigation-structured`; its breakdown adds up to its total of 67."""
    return {
        "score_reasoning": "However, it failed to look at the logs (E17).",
        "score_breakdown": BREAKDOWN,
        "total_score": 67,
        "missing_tools": [{"tool_name": "read-file", "rationale": "the script was never seen"}],
        "alternative_approaches": [
            {"name": "Logs first", "description": "Read before concluding.", "steps": ["kubectl.get_logs: all of them"]}
        ],
    } | changes


RUBRIC_SCORES = {
    "correct_commands": 0.8,
    "task_completion": 0.5,
    "efficiency": 0.6,
    "documentation": 1,
    "workflow_clarity": 0.4,
}


def rubric_reply(**changes: Any) -> dict[str, Any]:
    """A reply to `cli-tool-use`; its weighted score is 0.65."""
    return {
        "issues": ["It ran the same command twice (E4, E5)."],
        "highlights": ["It checked the result (E9)."],
        "scores": RUBRIC_SCORES,
        "weighted_score": 0.65,
        "confidence": 0.9,
    } | changes


def answer_json(reply: Any, **changes: Any) -> Turn:
    """An answer that is this JSON and nothing else."""
    return answer(json.dumps(reply), **changes)
