"""The strategy `rubric`: the judge gives the values; the code weighs them and computes the total."""

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripted import CONTEXT, RUBRIC_SCORES, ScriptedJudge, answer, answer_json, rubric_reply
from tables import table
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import Unscorable
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import Criteria, load_criteria
from tarsy_scoring.judge.strategies.rubric import percent, reply_schema
from tarsy_scoring.judge.verdict import RubricReading, Verdict

CRITERIA = load_criteria().get("cli-tool-use")
PROMPT = "{{ALERT_DATA}} {{SESSION_CONVERSATION}} {{OUTPUT_SCHEMA}}"


def weighing(**weights: float) -> Criteria:
    """Criteria with these weights by id."""
    return Criteria.model_validate(
        {
            "name": "weighing",
            "strategy": "rubric",
            "system_prompt": "Judge.",
            "prompt": PROMPT,
            "rubric": [{"id": id_, "weight": weight, "description": "Well done."} for id_, weight in weights.items()],
        }
    )


async def judge(reply: Any, criteria: Criteria = CRITERIA) -> Verdict:
    """One reading without reminders."""
    scripted = ScriptedJudge(answer(reply) if isinstance(reply, str) else answer_json(reply))
    return await assess(CONTEXT, criteria, scripted, ChainSettings(max_reminders=0), is_final=lambda _: True)


async def reading(reply: Any, criteria: Criteria = CRITERIA) -> RubricReading:
    verdict = await judge(reply, criteria)
    assert verdict.rubric is not None
    return verdict.rubric


async def test_a_reading_fills_the_verdict() -> None:
    verdict = await judge(rubric_reply())

    assert verdict.total_score == 65
    assert verdict.rubric == RubricReading(
        scores=RUBRIC_SCORES,
        weighted_score=0.65,
        confidence=0.9,
        issues=("It ran the same command twice (E4, E5).",),
        highlights=("It checked the result (E9).",),
    )
    assert verdict.score_analysis == (
        "Issues:\n- It ran the same command twice (E4, E5).\n\nHighlights:\n- It checked the result (E9)."
    )
    assert verdict.score_breakdown is None
    assert verdict.missing_tools_analysis is None
    assert verdict.flags == set()


@table
async def test_values_are_weighed(
    weights: dict[str, float], scores: dict[str, float], weighted: float, total: int
) -> None:
    """The total is 100 times the weighted sum, with halves rounded up and no floating-point error."""
    criteria = weighing(**weights)

    verdict = await judge({"scores": scores}, criteria)

    assert verdict.total_score == total
    assert verdict.rubric is not None
    assert verdict.rubric.weighted_score == weighted


@given(thousandths=st.integers(0, 1000))
def test_percent_rounds_halves_up(thousandths: int) -> None:
    assert percent(thousandths / 1000) == math.floor(Fraction(thousandths, 10) + Fraction(1, 2))


@given(
    weights=st.sets(st.integers(1, 99), max_size=6).map(
        lambda cuts: [b - a for a, b in pairwise([0, *sorted(cuts), 100])]
    ),
    data=st.data(),
)
async def test_weighing_is_exact(weights: list[int], data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 100), min_size=len(weights), max_size=len(weights)))
    exact = sum(Fraction(w * v, 10_000) for w, v in zip(weights, values, strict=True))
    criteria = weighing(**{f"i{n}": weight / 100 for n, weight in enumerate(weights)})

    verdict = await judge({"scores": {f"i{n}": value / 100 for n, value in enumerate(values)}}, criteria)

    assert verdict.total_score == math.floor(100 * exact + Fraction(1, 2))
    assert verdict.rubric is not None
    assert verdict.rubric.weighted_score == pytest.approx(float(exact), abs=1e-6)
    assert 0 <= verdict.rubric.weighted_score <= 1


@table
async def test_a_stated_sum_is_compared_and_never_used(stated: float | None, is_flagged: bool) -> None:
    """A stated sum more than a hundredth off is flagged; the total follows from the values alone."""
    verdict = await judge(rubric_reply(weighted_score=stated))

    assert verdict.total_score == 65
    assert verdict.rubric is not None
    assert verdict.rubric.weighted_score == 0.65
    assert verdict.flags == ({"breakdown_mismatch"} if is_flagged else set())


async def test_every_value_is_required() -> None:
    for id_ in RUBRIC_SCORES:
        scores = {other: value for other, value in RUBRIC_SCORES.items() if other != id_}
        with pytest.raises(Unscorable, match=rf"\(scores\.{id_}: Field required\)"):
            await judge(rubric_reply(scores=scores))
    for nameless in ([0.8, 0.5, 0.6, 1, 0.4], 0.7, None):
        with pytest.raises(Unscorable, match="scores: "):
            await judge(rubric_reply(scores=nameless))


def test_the_schema_asks_for_remarks_before_numbers() -> None:
    schema = reply_schema(CRITERIA.rubric)
    scores = schema["properties"]["scores"]

    assert schema["required"] == list(schema["properties"])
    assert schema["required"][:2] == ["issues", "highlights"]
    assert scores["required"] == [item.id for item in CRITERIA.rubric]
    assert scores["properties"]["efficiency"]["description"].startswith("0 to 1, weight 0.15: It takes no more")
