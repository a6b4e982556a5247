"""The example strategy of docs/extending.md works as written: one class and one entry in `STRATEGIES`."""

import re
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from scripted import CONTEXT, ScriptedJudge, answer
from tarsy_scoring.config.chains import ChainSettings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.judge.assess import assess
from tarsy_scoring.judge.criteria import load_criteria
from tarsy_scoring.judge.strategies import STRATEGIES

PAGE = Path(__file__).parents[3] / "docs/extending.md"


def example_of_the_page(language: str) -> str:
    section = PAGE.read_text(encoding="utf-8").partition("## A judge strategy")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return dedent(found[1])


@pytest.fixture
def with_the_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The example registered, and a folder with its criteria file."""
    names: dict[str, type] = {}
    exec(example_of_the_page("python"), names)
    monkeypatch.setitem(STRATEGIES, "grade", names["Grade"]())
    (tmp_path / "own.yaml").write_text(example_of_the_page("yaml"), encoding="utf-8")
    return tmp_path


async def test_criteria_of_a_new_strategy_are_loaded_and_judged(with_the_example: Path) -> None:
    criteria = load_criteria([with_the_example]).get("own-grade")
    scripted = ScriptedJudge(answer("Good work."), answer("However, no logs were read (E4).\n\nB"))

    verdict = await assess(CONTEXT, criteria, scripted, ChainSettings(), is_final=lambda _: True)

    assert scripted.kinds == ["analysis", "reminder"]
    assert (verdict.total_score, verdict.samples) == (75, [75])
    assert verdict.score_analysis == "However, no logs were read (E4)."
    assert set(criteria.added_by_code) == {"fence_notice", "output_schema"}
    assert criteria.added_by_code["output_schema"] in scripted.conversations[0][1].content


def test_the_check_of_a_new_strategy_refuses_criteria(with_the_example: Path) -> None:
    own = yaml.safe_load((with_the_example / "own.yaml").read_text(encoding="utf-8"))
    del own["reminder_prompt"]
    (with_the_example / "own.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")

    with pytest.raises(ConfigurationError, match="the strategy grade needs reminder_prompt"):
        load_criteria([with_the_example])


def test_an_unknown_strategy_is_named_with_the_nearest_known_one(with_the_example: Path) -> None:
    own = yaml.safe_load((with_the_example / "own.yaml").read_text(encoding="utf-8")) | {"strategy": "grad"}
    (with_the_example / "own.yaml").write_text(yaml.safe_dump(own), encoding="utf-8")

    with pytest.raises(ConfigurationError, match="no such strategy as 'grad'; did you mean 'grade'"):
        load_criteria([with_the_example])
