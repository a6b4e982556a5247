"""
Interaction metrics of recorded sessions, counted by a person who read the calls, not by the code under test.

`counted` says how a row was counted: its numbers are positions of the calls within their execution. In every recorded
call `is_error` is known and agrees with the status, and no exit code is recorded. A tally is the number of commands
and of those that failed.
"""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.evaluation.interaction import CommandRules, measure_interaction
from tarsy_scoring.timeline.files import load_session_file, parse_session
from unit.timeline.sessions import RECORDED, RECORDED_DIR

GOLDEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
RATES = ("error_rate", "retry_rate", "first_try_success_rate", "iteration_ratio")


def tallies(breakdown: dict[str, dict[str, Any]]) -> dict[str, list[int]]:
    for numbers in breakdown.values():
        assert numbers["error_rate"] == float(Fraction(numbers["error_count"], numbers["total_commands"]))
    return {name: [numbers["total_commands"], numbers["error_count"]] for name, numbers in breakdown.items()}


@pytest.mark.skipif(not RECORDED, reason="the recorded sessions are not beside this repository")
def test_metrics_equal_those_counted_by_hand() -> None:
    for case, row in GOLDEN.items():
        timeline = parse_session(load_session_file(RECORDED_DIR / f"{row['session_id']}.json"))
        rules = CommandRules(row.get("pattern"), tuple(row.get("shell_tools", ())))
        document = measure_interaction(timeline, rules).document()
        expected = row["expected"]

        found = {name: document[name] for name in expected} | {
            "by_tool": tallies(document["by_tool"]),
            "by_subcommand": tallies(document["by_subcommand"]),
        }
        exact = {name: None if expected[name] is None else float(Fraction(expected[name])) for name in RATES}
        assert found == expected | exact, case
        total = expected["total_commands"]
        assert document["error_basis"] == ({"is_error": total} if total else {}), case
