"""
The strategy `rubric`: one reply as JSON with a value per weighted criterion; the total is computed here.
"""

import math
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, create_model
from typing_extensions import TypedDict  # the one of `typing` tells pydantic too little before Python 3.12

from tarsy_scoring.judge import json_reply
from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.verdict import IsFinal, ReplyFormat, RubricReading, TurnKind, Verdict

if TYPE_CHECKING:
    from tarsy_scoring.judge.criteria import Criteria, RubricItem

TOLERANCE = 0.01  # of a stated weighted score; a rounded one is no contradiction

Value = Annotated[float, Field(ge=0, le=1, strict=True)]
Remarks = tuple[Annotated[str, Field(min_length=1)], ...]


class _Answer(BaseModel):
    """What every answer holds; the criteria's values are added per rubric."""

    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    weighted_score: StrictFloat | None = None  # of any size: it is compared and never used
    confidence: Value | str | None = None
    issues: Remarks = ()
    highlights: Remarks = ()


def reply_schema(rubric: "tuple[RubricItem, ...]") -> dict[str, Any]:
    """The JSON Schema of an answer: remarks before numbers, every property required, no others."""
    texts = {"type": "array", "items": {"type": "string"}}
    values = {
        item.id: {"type": "number", "description": f"0 to 1, weight {item.weight:g}: {item.description}"}
        for item in rubric
    }
    properties: dict[str, Any] = {
        "issues": {**texts, "description": "What went wrong, each with the entries that show it."},
        "highlights": {**texts, "description": "What was done well, each with the entries that show it."},
        "scores": json_reply.object_schema(values),
        "weighted_score": {"type": "number", "description": "The sum of each value times its weight."},
        "confidence": {"type": "number", "description": "0 to 1: how sure you are of these values."},
    }
    return json_reply.object_schema(properties)


def reply_format(criteria: "Criteria") -> ReplyFormat:
    """What the endpoint is asked to hold the model to."""
    return ReplyFormat("rubric", reply_schema(criteria.rubric))


async def evaluate(
    conversation: Conversation, criteria: "Criteria", kind: TurnKind, *, max_reminders: int, is_final: IsFinal
) -> Verdict:
    """
    Ask for the values and weigh them. A stated weighted score that differs is flagged and never used.

    Raises:
        InvalidStructuredAnswer, Refused, ContentFiltered, AnswerCut, EmptyAnswer: There is no score.
        RetryLater, WaitFor, Unscorable: As `ask` raises them.
    """
    answer, turn = await json_reply.say_json(conversation, kind, _model_of(criteria), max_reminders=max_reminders)
    scores: dict[str, float] = answer.scores  # type: ignore[attr-defined]
    weighted = sum(item.weight * scores[item.id] for item in criteria.rubric)
    reading = RubricReading(scores, round(weighted, 6), answer.confidence, answer.issues, answer.highlights)
    verdict = Verdict(total_score=percent(weighted), score_analysis=_as_text(reading), total_turn=turn, rubric=reading)
    if answer.weighted_score is not None and abs(answer.weighted_score - weighted) > TOLERANCE + 1e-9:
        verdict.flags.add("breakdown_mismatch")
    return verdict


def percent(weighted: float) -> int:
    """100 times the weighted score, halves rounded up; what floating point adds or takes does not count."""
    return min(100, math.floor(round(100 * weighted, 6) + 0.5))


def _as_text(reading: RubricReading) -> str:
    parts = [
        (title, remarks)
        for title, remarks in (("Issues", reading.issues), ("Highlights", reading.highlights))
        if remarks
    ]
    return "\n\n".join(f"{title}:\n" + "\n".join(f"- {remark}" for remark in remarks) for title, remarks in parts)


def _model_of(criteria: "Criteria") -> type[_Answer]:
    # No model: an id may be any word, also one that means something to pydantic.
    scores = TypedDict("Scores", {item.id: Value for item in criteria.rubric})  # type: ignore[misc]
    model: type[_Answer] = create_model("RubricAnswer", __base__=_Answer, scores=(scores, ...))
    return model
