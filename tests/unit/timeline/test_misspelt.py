"""What a session file probably misspells is named; what other programs add to their files is not."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tarsy_scoring.timeline.misspelt import KEYS, MOST_REMARKS, misspellings

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/session-files.md").read_text("utf-8")
EXAMPLES = sorted((ROOT / "service/tarsy_scoring_lab/examples").glob("*.json"))

CALL = {"event_type": "llm_tool_call", "content": "no", "metadata": {"server_name": "k", "tool_name": "get"}}


def session(*events: dict[str, Any], stage: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    execution = {"agent_name": "a", "status": "completed", "events": list(events)}
    only = {"stage_type": "investigation", "executions": [execution]} | (stage or {})
    return {"session_id": "one", "status": "completed", "alert_data": "alert", "stages": [only], **keys}


MISSPELT = [
    pytest.param(
        session(finalAnalysis="x"),
        "the session: the key 'finalAnalysis' is ignored; did you mean 'final_analysis'?",
        id="key of the session",
    ),
    pytest.param(
        session(*[CALL | {"metadata": {"argumets": "{}"}} for _ in range(3)]),
        "stages[0].executions[0].events[0].metadata: the key 'argumets' is ignored; did you mean 'arguments'?",
        id="key of several calls",
    ),
    pytest.param(
        session(CALL | {"event_type": "tool_call"}),
        "stages[0].executions[0].events[0]: the event_type 'tool_call' is unknown; did you mean 'llm_tool_call'?",
        id="type of an event",
    ),
]


@pytest.mark.parametrize(("written", "remark"), MISSPELT)
def test_a_misspelling_is_named_with_its_place_and_what_is_near(written: dict[str, Any], remark: str) -> None:
    assert misspellings(written) == [remark]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_sessions_misspell_nothing(path: Path) -> None:
    assert misspellings(json.loads(path.read_text("utf-8"))) == []


def test_other_keys_are_the_author_s_business() -> None:
    """Columns of TARSy's records, keys that resemble one that is there, and metadata of other events."""
    event = {"event_type": "llm_response", "content": "x", "stage_id": "s", "metadata": {"toolname": "x"}}
    written = session(
        event, stage={"user_message": "why?"}, source="bench", labels={"labels": "x"}, label="x", review_status="done"
    )

    assert misspellings(written) == []


def test_parts_of_a_wrong_shape_are_passed_over() -> None:
    for wrong in (None, 7, {}, [7, None, []]):
        assert misspellings(session(stages=wrong, available_tools=wrong)) == []
        assert misspellings(session(stage={"executions": wrong})) == []
        assert misspellings(session({"event_type": wrong, "metadata": wrong})) == []


def test_the_remarks_are_few() -> None:
    events = [{"event_type": f"kind-{n}", "content": "x"} for n in range(1000)]

    assert len(misspellings(session(*events))) == MOST_REMARKS


def test_the_documentation_has_every_key() -> None:
    tables = re.findall(r"^\| key \|.*?\n\n", PAGE, re.DOTALL | re.MULTILINE)
    first_cells = re.findall(r"^\| (`[^|]+`) \|", "".join(tables), re.MULTILINE)
    within = re.findall(r"\| (?:list of|object \|).*", "".join(tables))
    documented = set(re.findall(r"`(\w+)`", " ".join(first_cells)))

    assert documented == {key for kind in ("session", "stage", "execution", "event") for key in KEYS[kind]}
    for kind in ("tool", "tool call"):
        assert {key for key in KEYS[kind] if not any(key in line for line in within)} == set()
