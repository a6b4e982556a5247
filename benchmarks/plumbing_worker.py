"""
The service with a judge that answers at once from memory, to measure everything but the judge.

Its arguments are those of `python -m tarsy_scoring`.
"""

from typing import Any

from tarsy_scoring.cli import main
from tarsy_scoring.judge.ask.client import JudgeClient
from tarsy_scoring.judge.verdict import Question, Turn

_PROSE = "The agent looked at pods, logs and metrics before it concluded, and said what it could not verify. " * 20
_POINTS = "Logical Flow: 18/25\nConsistency: 17/25\nTool Relevance: 20/25\nSynthesis Quality: 16/25\n71"
_REPLIES: dict[str, str] = {
    "analysis": f"{_PROSE}\n\n{_POINTS}",
    "missing_tools": f"{_PROSE[:400]}\n\n1. **read-file**: the content of files was inferred from their names.",
}


async def _answer(client: JudgeClient, question: Question, **_: Any) -> Turn:
    return Turn(
        kind=question.kind,
        reply=_REPLIES[question.kind],
        provider=client.provider,
        model_requested=client.settings.model,
        model_served=client.settings.model,
        input_tokens=sum(len(m.content) for m in question.messages) // 4,
        cached_input_tokens=0,
        output_tokens=len(_REPLIES[question.kind]) // 4,
        cost_usd=None,
        latency_ms=0,
        finish_reason="stop",
    )


if __name__ == "__main__":
    JudgeClient.ask = _answer  # type: ignore[method-assign, assignment]
    main()
