"""
The strategy `structured`: one JSON reply that holds the total, the missing tools and the better approaches.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt, create_model
from typing_extensions import TypedDict  # `typing.TypedDict` lacks what pydantic reads before Python 3.12

from tarsy_scoring.judge.conversation import Conversation
from tarsy_scoring.judge.definition import Bands, Definition
from tarsy_scoring.judge.read import json_reply
from tarsy_scoring.judge.strategies.contradictions import repair
from tarsy_scoring.judge.strategies.strategy import Strategy
from tarsy_scoring.judge.verdict import AlternativeApproach, MissingTool, ReplyFormat, Turn, TurnKind, Verdict


class Structured(Strategy):
    """One question, answered in JSON; a second one only where the numbers contradict each other."""

    name = "structured"

    def added_prompts(self, definition: Definition) -> Mapping[str, str]:
        """
        The reply schema, the reminder for a reply that does not fit it, and the repair request.
        """
        added = json_reply.added_prompts(self.reply_format(definition))
        return added | {"repair_prompt": repair_prompt(definition.bands)}

    def reply_format(self, definition: Definition) -> ReplyFormat:
        """Reasoning, numbers, missing tools and approaches in one object."""
        return ReplyFormat("judgement", reply_schema(definition.max_points, definition.bands))

    async def evaluate(self, conversation: Conversation, definition: Definition, kind: TurnKind) -> Verdict:
        """
        Ask for the JSON, remind the judge where it does not fit, and once ask to repair contradictory
        numbers.

        Raises:
            Unscorable: There is no score.
            RetryLater, WaitFor, Unscorable: As `Conversation.say` raises them.
        """
        model = _model_of(definition)
        answer, turn = await json_reply.say_json(conversation, kind, model, _total_of)
        verdict = Verdict(answer.total_score, answer.score_reasoning, turn)
        verdict.missing_tools = answer.missing_tools
        verdict.missing_tools_analysis = _as_text(verdict.missing_tools)
        verdict.alternative_approaches = answer.alternative_approaches

        def take_numbers(answer: _StructuredAnswer, turn: Turn) -> None:
            verdict.total_score, verdict.total_turn = answer.total_score, turn
            stated: dict[str, float] | None = getattr(answer, "score_breakdown", None)
            verdict.score_breakdown = stated and {
                id_: int(p) if p.is_integer() else p for id_, p in stated.items()
            }
            verdict.judge_outcome = getattr(answer, "outcome", None)

        def take_repaired(turn: Turn) -> None:
            repaired = json_reply.parse(turn.answer, model, _total_of)
            if not isinstance(repaired, str):
                take_numbers(repaired, turn)

        take_numbers(answer, turn)
        await repair(conversation, verdict, definition.bands, repair_prompt(definition.bands), take_repaired)
        return verdict


REPAIR_PROMPT = """\
The numbers in your answer do not agree: the points of the categories must add up to total_score{and_band}. Decide \
which of them you mean, then restate the whole JSON object so that they agree. Change nothing else in it, and send \
nothing else."""

MOST_APPROACHES = 3


def as_whole(value: object) -> object:
    """The number as an integer where it is written as 78.0; any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _StructuredAnswer(BaseModel):
    """Fields in every structured answer; breakdown and outcome are added per definition."""

    # Deferred: answers are read by models made from this one.
    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True, defer_build=True)

    score_reasoning: Annotated[str, Field(min_length=1)]
    total_score: Annotated[StrictInt, BeforeValidator(as_whole), Field(ge=0, le=100)]
    missing_tools: list[MissingTool] = []
    alternative_approaches: Annotated[list[AlternativeApproach], Field(max_length=MOST_APPROACHES)] = []


def _total_of(answer: _StructuredAnswer) -> int:
    return answer.total_score


def reply_schema(max_points: Mapping[str, int], bands: Bands) -> dict[str, Any]:
    """
    The JSON Schema of an answer, for OpenAI's strict mode: every property is required and no others are
    allowed.

    Reasoning comes before numbers, so that a model that writes in order reasons first. Ranges are also stated
    in words, because endpoints do not enforce them.
    """
    text = {"type": "string"}
    tool = json_reply.object_schema({"tool_name": text, "rationale": text})
    steps = {
        "type": "array",
        "items": text,
        "description": "In order; each begins with the name of an available tool.",
    }
    properties: dict[str, Any] = {"score_reasoning": {**text, "description": "At least 200 words."}}
    if bands:
        ranges = ", ".join(f"{name}: total_score {low}-{high}" for name, (low, high) in bands.items())
        properties["outcome"] = {**text, "enum": list(bands), "description": ranges}
    if max_points:
        points = {id_: {"type": "number", "description": f"0-{most}"} for id_, most in max_points.items()}
        properties["score_breakdown"] = json_reply.object_schema(points)
    sum_of = ", the sum of score_breakdown" if max_points else ""
    properties["total_score"] = {"type": "integer", "description": f"0-100{sum_of}."}
    properties["missing_tools"] = {"type": "array", "items": tool}
    approach = json_reply.object_schema({"name": text, "description": text, "steps": steps})
    properties["alternative_approaches"] = {
        "type": "array",
        "items": approach,
        "description": f"0 to {MOST_APPROACHES}.",
    }
    return json_reply.object_schema(properties)


def repair_prompt(bands: Bands) -> str:
    """The request for numbers that agree, sent once per sample."""
    return REPAIR_PROMPT.format(
        and_band=", and total_score must lie in the range of its outcome" if bands else ""
    )


def _as_text(tools: list[MissingTool]) -> str:
    lines = [f"{n}. **{t.tool_name}**: {t.rationale}" for n, t in enumerate(tools, start=1)]
    return "\n".join(lines) or "No critical missing tools identified."


def _model_of(definition: Definition) -> type[_StructuredAnswer]:
    """The model of an answer under this definition."""
    fields: dict[str, Any] = {}
    if definition.categories:
        points = {
            id_: Annotated[float, Field(ge=0, le=most, strict=True)]
            for id_, most in definition.max_points.items()
        }
        # A TypedDict, because an id may be any word, even one that is reserved in pydantic models.
        fields["score_breakdown"] = (TypedDict("Breakdown", points), ...)  # type: ignore[operator]
    if definition.bands:
        pattern = "^(?:" + "|".join(definition.bands) + ")$"
        fields["outcome"] = (Annotated[str, Field(pattern=pattern)], ...)
    model: type[_StructuredAnswer] = create_model("Answer", __base__=_StructuredAnswer, **fields)
    return model
