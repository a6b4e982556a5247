"""
The strategy `rubric`: one JSON reply with a value per weighted criterion, from which code computes the total.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, create_model
from typing_extensions import TypedDict  # `typing.TypedDict` lacks what pydantic reads before Python 3.12

from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.definition import Definition, RubricItem
from tarsy_scoring.judge.read import json_reply
from tarsy_scoring.judge.strategies.strategy import Strategy
from tarsy_scoring.judge.verdict import ReplyFormat, RubricReading, TurnKind, Verdict


class RubricStrategy(Strategy):
    """The judge gives the values, the criteria file gives the weights, and code computes the weighted sum."""

    name = "rubric"

    def check(self, definition: Definition) -> None:
        """
        Check that the file has a rubric whose weights add up to 1.

        Raises:
            ValueError: There is no rubric, or the weights do not add up to 1.
        """
        if not definition.rubric:
            raise ValueError("the strategy rubric needs rubric")
        if abs((weights := sum(item.weight for item in definition.rubric)) - 1) > 1e-6:
            raise ValueError(f"the weights of rubric add up to {weights:g}, not to 1")

    def added_prompts(self, definition: Definition) -> Mapping[str, str]:
        """The reply schema, and the reminder for a reply that does not fit it."""
        return json_reply.added_prompts(self.reply_format(definition))

    def reply_format(self, definition: Definition) -> ReplyFormat:
        """An object with one number per criterion."""
        return ReplyFormat("rubric", reply_schema(definition.rubric))

    async def evaluate(self, conversation: Conversation, definition: Definition, kind: TurnKind) -> Verdict:
        """
        Ask for the values and weigh them. A weighted score that the judge states differently is flagged,
        never used.

        Raises:
            Unscorable: There is no score.
            RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
        """
        answer, turn = await json_reply.say_json(conversation, kind, _model_of(definition), _scores_of)
        scores = _scores_of(answer)
        weighted = sum(item.weight * scores[item.id] for item in definition.rubric)
        reading = RubricReading(
            scores, round(weighted, 6), answer.confidence, answer.issues, answer.highlights
        )
        verdict = Verdict(
            total_score=percent(weighted), score_analysis=_as_text(reading), total_turn=turn, rubric=reading
        )
        if answer.weighted_score is not None and abs(answer.weighted_score - weighted) > TOLERANCE + 1e-9:
            verdict.flags.add("breakdown_mismatch")
        return verdict


TOLERANCE = 0.01  # of a stated weighted score, which may be rounded

Value = Annotated[float, Field(ge=0, le=1, strict=True)]
Remarks = tuple[Annotated[str, Field(min_length=1)], ...]


class _RubricAnswer(BaseModel):
    """Fields in every answer; the values are added per rubric."""

    # Deferred: answers are read by models made from this one.
    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True, defer_build=True)

    weighted_score: StrictFloat | None = None  # any number: it is compared and never used
    confidence: Value | str | None = None
    issues: Remarks = ()
    highlights: Remarks = ()


def _scores_of(answer: _RubricAnswer) -> dict[str, float]:
    scores: dict[str, float] = answer.scores  # type: ignore[attr-defined]
    return scores


def reply_schema(rubric: Sequence[RubricItem]) -> dict[str, Any]:
    """The JSON Schema of an answer: remarks before numbers, every property required, no others allowed."""
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


def percent(weighted: float) -> int:
    """100 times the weighted score, with halves rounded up and floating-point error removed first."""
    return min(100, math.floor(round(100 * weighted, 6) + 0.5))


def _as_text(reading: RubricReading) -> str:
    parts = [
        (title, remarks)
        for title, remarks in (("Issues", reading.issues), ("Highlights", reading.highlights))
        if remarks
    ]
    return "\n\n".join(
        f"{title}:\n" + "\n".join(f"- {remark}" for remark in remarks) for title, remarks in parts
    )


def _model_of(definition: Definition) -> type[_RubricAnswer]:
    # A TypedDict, because an id may be any word, even one that is reserved in pydantic models.
    scores = TypedDict("Scores", {item.id: Value for item in definition.rubric})  # type: ignore[misc]
    model: type[_RubricAnswer] = create_model("RubricAnswer", __base__=_RubricAnswer, scores=(scores, ...))
    return model
