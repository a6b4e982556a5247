"""
The fields of a score, each declared once.

A new field needs an entry here and, where it is stored, a column in a migration. The statement that ends a
score (`queue/store`), the score document (`scores/document`), the JSON Schema (`web/documents`) and the CSV
header (`scores/export`) are made from this table.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from tarsy_scoring.events import InteractionTotals
from tarsy_scoring.scores.shapes import (
    ERROR_KINDS,
    FLAGS,
    WAITING_FOR,
    AlternativeApproach,
    Count,
    Coverage,
    Diagnosis,
    Evidence,
    Gate,
    Grounding,
    Interaction,
    LatestAttempt,
    LayerResults,
    MissingTool,
    Reference,
    Rubric,
    Sample,
    SecondOpinion,
    Status,
    Turn,
    Usage,
)


@dataclass(frozen=True, slots=True)
class ScoreField:
    """
    A field in the score document, a column in `session_scores`, or both.

    Args:
        type: Type of the value in the document, for pydantic; the description goes into the schemas.
        is_column: Stored under this name in `session_scores`; False: computed when the document is made.
        is_set_at_end: The statement that ends a score stores the value that the attempt found.
        is_list: A list: an attempt that found nothing stores `[]` and not null.
        is_shown: The document has the field.
        is_always_there: False: the document omits the field where it has no value.
        csv: Place in a CSV row, from 1; None: not exported. A new field takes the next
            number, so that columns which readers count do not move.
        csv_members: Members that become one cell each, in place of the whole object.
    """

    name: str
    type: Any
    is_column: bool = True
    is_set_at_end: bool = False
    is_list: bool = False
    is_shown: bool = True
    is_always_there: bool = True
    csv: int | None = None
    csv_members: tuple[str, ...] = ()


def _result(name: str, type_: Any, csv: int | None = None, **more: Any) -> ScoreField:
    """A field whose value an attempt finds; the end of the score stores it."""
    return ScoreField(name, type_, is_set_at_end=True, csv=csv, **more)


def _derived(name: str, type_: Any, csv: int | None = None, **more: Any) -> ScoreField:
    """A field that is computed for the document and is no column."""
    return ScoreField(name, type_, is_column=False, csv=csv, **more)


def _about(type_: Any, description: str, **more: Any) -> Any:
    """The type with a description for the schemas."""
    return Annotated[type_, Field(description=description, **more)]


# In the order of the document's schema.
SCORE_FIELDS = (
    ScoreField("score_id", str, csv=1),
    ScoreField("session_id", str, csv=2),
    ScoreField("request_id", _about(str | None, "Null for a score made offline, which is not stored.")),
    ScoreField("chain_id", str | None, csv=3),
    ScoreField("purpose", Literal["production", "consistency", "anchor", "shadow"], csv=4),
    ScoreField("status", Status, csv=5),
    ScoreField("attempt", Count, csv=6),
    _derived(
        "waiting_for",
        _about(str | None, "Only while pending: why it is not running.", examples=WAITING_FOR),
        is_always_there=False,
    ),
    _derived(
        "waiting_for_text",
        _about(str | None, "Only with `waiting_for`: the same in words, with numbers where there are some."),
        is_always_there=False,
    ),
    _derived(
        "latest_attempt",
        _about(LatestAttempt | None, "Only where something newer runs or failed."),
        is_always_there=False,
    ),
    ScoreField("score_triggered_by", str, csv=7),
    ScoreField("created_at", datetime, csv=8),
    ScoreField("started_at", datetime | None, csv=9),
    ScoreField("completed_at", datetime | None),
    _derived("scored_at", _about(datetime | None, "The same as `completed_at`."), csv=10),
    ScoreField(
        "current_stage",
        _about(str | None, "Only while `in_progress`: the last phase."),
        is_always_there=False,
    ),
    _result("total_score", Annotated[int, Field(ge=0, le=100)] | None, csv=11),
    _result("score_analysis", str | None, csv=25),
    _result("score_breakdown", _about(dict[str, float] | None, "Points by category."), csv=27),
    _result("missing_tools_analysis", str | None, csv=26),
    _derived("missing_tools", list[MissingTool], csv=30),
    _derived("alternative_approaches", list[AlternativeApproach]),
    _result("rubric", Rubric | None),
    ScoreField("criteria", str | None, csv=16),
    ScoreField("criteria_hash", str | None, csv=17),
    _derived(
        "is_current_criteria", _about(bool, "Whether the criteria of that name still have this hash."), csv=18
    ),
    _result(
        "judge_fingerprint", _about(str | None, "Scores under different ones are not comparable."), csv=19
    ),
    _result("samples", list[Sample], is_list=True),
    _derived("spread", Count | None, csv=20),
    _result("second_opinion", SecondOpinion | None),
    _result("outcome", Literal["pass", "fail"] | None, csv=12),
    _result("outcome_reason", str | None, csv=13),
    _result("judge_outcome", _about(str | None, "Id of the band that the judge stated."), csv=14),
    _result(
        "pass_threshold",
        _about(Annotated[float, Field(ge=0, le=100)] | None, "Least total that passed when it was judged."),
        csv=36,
    ),
    _result(
        "judge_passed",
        _about(bool | None, "Whether the total reaches it; null: without a total or threshold."),
        csv=37,
    ),
    _derived("layers", LayerResults),
    _result("composite_score", Annotated[float, Field(ge=0, le=100)] | None, csv=15),
    _result("failure_tags", list[str], csv=28, is_list=True),
    _result("flags", list[Annotated[str, Field(examples=FLAGS)]], csv=29, is_list=True),
    _result("grounding", Grounding | None, csv=32, csv_members=("share",)),
    _result(
        "reference",
        _about(Reference | None, "Null: judged without one. The two kinds of scores are not comparable."),
        csv=35,
        csv_members=tuple(Reference.model_fields),
    ),
    _result("interaction", Interaction | None, csv=31, csv_members=tuple(InteractionTotals.model_fields)),
    _result("diagnosis", list[Diagnosis], is_list=True),
    _result("gates", list[Gate], is_list=True),
    _derived("gates_passed", Count | None, csv=21),
    _derived("gates_total", Count | None, csv=22),
    _result("coverage", Coverage | None, csv=33, csv_members=("shown_share",)),
    _result("evidence", Evidence | None),
    _derived("turns", list[Turn]),
    _result("usage", Usage, csv=34, csv_members=tuple(Usage.model_fields)),
    _result("error_kind", Annotated[str | None, Field(examples=ERROR_KINDS)], csv=23),
    _result("error_message", str | None, csv=24),
)

SET_AT_END = tuple(field.name for field in SCORE_FIELDS if field.is_set_at_end)
# The columns that every document shows as they are.
SHOWN_COLUMNS = tuple(f.name for f in SCORE_FIELDS if f.is_column and f.is_shown and f.is_always_there)


def no_results() -> dict[str, Any]:
    """The fields that the end of a score stores, without results: null, or `[]` for lists."""
    return {field.name: [] if field.is_list else None for field in SCORE_FIELDS if field.is_set_at_end}
