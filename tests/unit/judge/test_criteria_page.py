"""docs/criteria.md is complete, and its example file is valid."""

import re
from pathlib import Path

import pytest

from tarsy_scoring.judge.criteria import Criteria, load_criteria, read_criteria_file

PAGE = (Path(__file__).parents[3] / "docs" / "criteria.md").read_text(encoding="utf-8")


def test_every_key_is_explained_and_no_other() -> None:
    table = PAGE.split("## A criteria file")[1].split("## Strategies")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(Criteria.model_fields)


def test_the_example_is_valid(tmp_path: Path) -> None:
    [example] = re.findall(r"```yaml\n(name: .*?)```", PAGE, re.DOTALL)
    (tmp_path / "triage.yaml").write_text(example, encoding="utf-8")
    assert read_criteria_file(tmp_path / "triage.yaml").max_points == {"severity": 60, "routing": 40}


def test_the_shipped_criteria_are_listed_with_their_strategies() -> None:
    table = PAGE.split("## A criteria file")[0]
    listed = dict(re.findall(r"^\| `([\w-]+)`(?: \(default\))? \| `(\w+)` \|", table, re.MULTILINE))
    assert listed == {c.name: c.strategy for c in load_criteria()}
    assert "| `investigation` (default) |" in table


@pytest.mark.parametrize("criteria", list(load_criteria()), ids=lambda criteria: criteria.name)
def test_every_text_added_by_code_is_explained(criteria: Criteria) -> None:
    lines = dict(re.findall(r"^- `(\w+)`,? ?(.*)$", PAGE.split("## What code adds")[1], re.MULTILINE))
    for name in criteria.added_by_code:
        assert f"`{criteria.strategy}`" in lines[name] or "(" not in lines[name]
